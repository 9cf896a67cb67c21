"""The commands of `switchyard`: one module each; heavy imports stay inside the command."""
