import { spawnSync } from "node:child_process";
import { cpSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ListObjectsV2Command, type S3Client } from "@aws-sdk/client-s3";
import { afterAll, beforeAll, expect, test } from "vitest";
import { RELATIVE_ERROR_MAX, worstDistance } from "../support/golden.ts";
import { DEMO, FIXTURES, Machine } from "../support/program.ts";
import { credentialEnv, makeBucket, type S3Server, s3Client } from "../support/servers.ts";
import { sharedS3 } from "../support/shared-s3.ts";
import { ROOT, VENV_PYTHON } from "../support/transformers.ts";

/** The whole of it: 2,000 conversations, two SIGKILLs, another machine, an audit, and ten samples computed elsewhere. */

const ROWS = 2_000;
const TAPS = [1, 4, 7];
const MODEL = join(DEMO, "tiny-qwen3");

let server: S3Server;
let client: S3Client;
let bucket: string;
let address: string;
const machines: Machine[] = [];
beforeAll(async () => {
  server = sharedS3("weed");
  client = s3Client(server);
  bucket = await makeBucket(server, "whole");
  address = `s3://${bucket}/runs/gsm8k`;
});
afterAll(async () => {
  client?.destroy();
  await Promise.all(machines.map((machine) => machine.remove()));
});

function open(): Machine {
  const machine = new Machine(credentialEnv(server));
  machines.push(machine);
  return machine;
}

test("2,000 conversations, killed twice, resumed on another machine from the bucket alone: whole, and the model's own", async () => {
  const first = open();
  // GSM8K's test split has 1,319: the second time each is another one.
  const lines = readFileSync(join(FIXTURES, "gsm8k-test.jsonl"), "utf8").trim().split("\n");
  const again = lines.map((line) => line.replace('"content": "', '"content": "Again. '));
  writeFileSync(first.path("chats.jsonl"), `${[...lines, ...again].join("\n")}\n`);
  const dataset = first.path("gsm8k");
  const input = ["--input", first.path("chats.jsonl"), "--limit", String(ROWS)];
  const tokenized = await first.run(["tokenize", "--model", MODEL, ...input, "--output", dataset]);
  expect(tokenized.code, tokenized.stderr).toBe(0);

  const common = (machine: Machine) => [
    ...["--endpoint", server.endpoint, "--engines", "2", "--spool-bytes", "64MiB", "--disk-floor", "1MiB"],
    ...["--run-dir", machine.path("run"), "--spool", machine.path("spool"), "--port", "0"],
    ...["--progress", "quiet"],
  ];
  const run = ["run", address, "--model", MODEL, "--dataset", dataset, "--taps", TAPS.join()];
  const killedAt: number[] = [];
  for (const share of [0.2, 0.4]) {
    const { child, ended } = first.start([...run, "--pack-bytes", "2MiB", ...common(first)]);
    while ((await packsStored()) < share * 256) {
      if (child.exitCode !== null) throw new Error(`it ended too early:\n${(await ended).stderr}`);
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    child.kill("SIGKILL");
    expect((await ended).signal).toBe("SIGKILL");
    killedAt.push(await packsStored());
  }

  const other = open();
  const model = other.path("elsewhere/the-model");
  cpSync(MODEL, model, { recursive: true });
  const resumed = await other.run(["resume", address, "--model", model, ...common(other)]);
  expect(resumed.code, resumed.stderr).toBe(0);

  const verified = await other.run(["verify", address, "--endpoint", server.endpoint, "--deep", "--json"]);
  const audit = JSON.parse(verified.stdout.trim().split("\n").at(-1)!);
  expect(audit).toMatchObject({
    ok: true,
    rows: { planned: ROWS, committed: ROWS, skipped: 0, missing: 0, duplicate: 0, corrupt: 0 },
    aliens: 0,
  });
  for (const packs of killedAt) expect(packs).toBeLessThan(audit.packs);

  const worst = tenSamples(other).map(({ ids, states, hidden }) =>
    worstDistance(Uint16Array.from(states), TAPS, {
      ids,
      blocks: TAPS,
      hidden: Float32Array.from(hidden),
      hiddenSize: 192,
    }),
  );
  expect(worst).toHaveLength(10);
  expect(Math.max(...worst)).toBeLessThan(RELATIVE_ERROR_MAX);
  const share = killedAt.map((packs) => `${Math.round((100 * packs) / audit.packs)} %`);
  console.log(
    `${audit.packs} packs, ${audit.bytes} bytes; killed at ${share.join(" and ")}; ten samples within ` +
      `${Math.max(...worst).toExponential(1)} of float32, bf16 rounding apart`,
  );
});

async function packsStored(): Promise<number> {
  const listed = await client.send(new ListObjectsV2Command({ Bucket: bucket, Prefix: "runs/gsm8k/packs/" }));
  return listed.KeyCount ?? 0;
}

interface Compared {
  ids: number[];
  /** Stored bf16 bits, [tokens, taps, hidden]. */
  states: number[];
  /** The same by transformers in float32. */
  hidden: number[];
}

/** Ten rows by chance, as stored, and as transformers computes them one by one. */
function tenSamples({ env }: Machine): Compared[] {
  const script = `
import json, random, sys, torch, transformers, forebay
run = forebay.open(sys.argv[1], endpoint=sys.argv[2])
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[3], dtype=torch.float32).eval()
for row in random.sample(run.rows.tolist(), 10):
    sample, outputs = run.read(row, check=True), []
    hooks = [
        model.model.layers[tap].register_forward_hook(lambda _m, _i, out: outputs.append(out[0] if isinstance(out, tuple) else out))
        for tap in run.taps
    ]
    with torch.inference_mode():
        model(torch.from_numpy(sample.token_ids)[None])
    for hook in hooks:
        hook.remove()
    hidden = torch.stack([output[0] for output in outputs], 1)
    print(json.dumps([sample.token_ids.tolist(), sample.states.reshape(-1).tolist(), hidden.reshape(-1).tolist()]))
`;
  const { status, stdout, stderr } = spawnSync(VENV_PYTHON, ["-c", script, address, server.endpoint, MODEL], {
    env: { ...env, PYTHONPATH: join(ROOT, "python") },
    encoding: "utf8",
    maxBuffer: 2 ** 30,
  });
  expect(status, stderr).toBe(0);
  return stdout
    .trim()
    .split("\n")
    .map((line) => {
      const [ids, states, hidden] = JSON.parse(line) as [number[], number[], number[]];
      return { ids, states, hidden };
    });
}
