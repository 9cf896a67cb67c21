"""The official Python SDKs of OpenAI and Anthropic, with the gateway between them and an engine."""
