"""How fast an engine or a gateway answers: prefill and decode, alone and side by side, by llama-benchy's definitions."""
