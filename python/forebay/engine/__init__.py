"""The transformers engine: token ids in, hidden states into a pack file out. Started by run_engine.py."""
