import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { engineEnvironment, refusedEngineEnv } from "./environment.ts";

describe("an engine's environment", () => {
  test("holds what engines need and what we set, nothing else", () => {
    const env = engineEnvironment({
      PATH: "/bin",
      HOME: "/home/a",
      LC_ALL: "C",
      EDITOR: "vi",
      NODE_OPTIONS: "-x",
    });
    expect(env).toEqual({
      PATH: "/bin",
      HOME: "/home/a",
      LC_ALL: "C",
      PYTHONUNBUFFERED: "1",
      TOKENIZERS_PARALLELISM: "false",
      HF_HUB_OFFLINE: "1",
      PYTORCH_CUDA_ALLOC_CONF: "expandable_segments:True",
    });
  });

  test.each([
    "HF_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_REGION",
    "CUDA_API_KEY",
    "hf_token",
    "XDG_PASSWORD",
    "VLLM_API_KEY",
  ])("never holds %s, wherever it comes from", (name) => {
    expect(engineEnvironment({ [name]: "x" }, { extra: { [name]: "x" } })).not.toHaveProperty([name]);
    expect(refusedEngineEnv({ [name]: "x", OMP_NUM_THREADS: "4" })).toEqual([name]);
  });

  test("holds no name that looks like a secret's, whatever the parent's environment is (seed is printed on failure)", () => {
    const name = fc.tuple(
      fc.constantFrom("", "HF_", "PATH", "AWS_", "TORCH", "OMP_", "X"),
      fc.constantFrom("", "MY_", "a"),
      fc.constantFrom("", "TOKEN", "Secret", "password", "CREDENTIALS", "API_KEY", "KEY", "HOME"),
    );
    fc.assert(
      fc.property(fc.array(name), fc.array(name), (parent, extra) => {
        const entries = (names: string[][]) =>
          Object.fromEntries(names.map((parts) => [parts.join(""), "v"]));
        for (const key of Object.keys(engineEnvironment(entries(parent), { extra: entries(extra) }))) {
          if (key !== "TOKENIZERS_PARALLELISM") {
            expect(key).not.toMatch(/TOKEN|SECRET|PASSWORD|CREDENTIAL|_KEY|^AWS_/i);
          }
        }
      }),
    );
  });

  test("keeps the allocator settings that were given, shows one device, and lets the hub be asked when told", () => {
    const parent = {
      PYTORCH_CUDA_ALLOC_CONF: "max_split_size_mb:64",
      HF_HUB_OFFLINE: "1",
      CUDA_VISIBLE_DEVICES: "0,1",
    };
    const env = engineEnvironment(parent, {
      device: "GPU-5",
      hubOffline: false,
      extra: { OMP_NUM_THREADS: "2" },
    });
    expect(env).toMatchObject({
      PYTORCH_CUDA_ALLOC_CONF: "max_split_size_mb:64",
      CUDA_VISIBLE_DEVICES: "GPU-5",
      OMP_NUM_THREADS: "2",
    });
    expect(env).not.toHaveProperty("HF_HUB_OFFLINE");
  });
});
