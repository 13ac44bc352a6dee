"""The other side of `bench engine`: the same batches through Hugging Face transformers in float32.

Reads {"model", "threads", "taps", "batches": [[[id, ...], ...], ...]} as one line, then a line for each round;
answers each with one line {"gemm", "taps_s", "all_s"}: GFLOP/s of torch's own matrix product, seconds for the
decoder with a hook at each tap, and seconds for the usual model(..., output_hidden_states=True).
"""
import json, sys, time
import torch
from transformers import AutoModelForCausalLM

# A torch whose CUDA libraries were left out crashes when transformers asks it about CUDA graphs.
torch.cuda.is_current_stream_capturing = lambda: False


def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def gemm_rate(shapes):
    best = 0.0
    for m, n, k in shapes:
        a, b = torch.rand(m, k), torch.rand(n, k)
        for _ in range(4):
            best = max(best, 2 * m * n * k / seconds(lambda: a @ b.T) / 1e9)
    return best


def main():
    setup = json.loads(sys.stdin.readline())
    torch.set_num_threads(setup["threads"])
    model = AutoModelForCausalLM.from_pretrained(setup["model"], dtype=torch.float32).eval()
    batches = [torch.tensor(batch) for batch in setup["batches"]]
    kept = []

    def tapped():
        first = lambda out: out[0] if isinstance(out, tuple) else out
        hooks = [
            model.model.layers[k].register_forward_hook(lambda _m, _i, out: kept.append(first(out)))
            for k in setup["taps"]
        ]
        for batch in batches:
            kept.clear()
            model.model(input_ids=batch, use_cache=False)
            torch.stack(kept, 2).to(torch.bfloat16)
        for hook in hooks:
            hook.remove()

    def everything():
        for batch in batches:
            model(input_ids=batch, use_cache=False, output_hidden_states=True)

    with torch.inference_mode():
        model.model(input_ids=batches[0], use_cache=False)
        print(json.dumps({"versions": {"torch": torch.__version__}}), flush=True)
        for _ in sys.stdin:
            answer = {"gemm": gemm_rate(setup["gemms"]), "taps_s": seconds(tapped), "all_s": seconds(everything)}
            print(json.dumps(answer), flush=True)


main()
