"""vLLM's own ExampleHiddenStatesConnector where there is no GPU: it makes CUDA streams, events and pinned memory
whatever it runs on, and its engine dies of that on a CPU. Only the `torch` that its module sees is wrapped; what it
does is the original's."""

import contextlib
import types

import torch
import vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector as original


class _Event:
    def record(self, *_):
        pass

    def synchronize(self):
        pass

    def query(self):
        return True


class _Stream:
    def wait_event(self, _):
        pass


class _Torch(types.ModuleType):
    cuda = types.SimpleNamespace(Stream=_Stream, Event=_Event, stream=lambda _: contextlib.nullcontext())

    @staticmethod
    def empty_like(tensor, pin_memory=False, **options):
        return torch.empty_like(tensor, **options)

    def __getattr__(self, name):
        return getattr(torch, name)


if not torch.cuda.is_available():
    original.torch = _Torch("torch")


class CpuHiddenStatesConnector(original.ExampleHiddenStatesConnector):
    pass
