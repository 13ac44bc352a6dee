import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { mulberry32 } from "./support/chaos-proxy.ts";
import { type KillSubject, runArgs, writeRows } from "./support/kills.ts";
import { Machine } from "./support/program.ts";
import { credentialEnv, makeBucket, type S3Server } from "./support/servers.ts";
import { sharedS3 } from "./support/shared-s3.ts";
import { ROOT, VENV_PYTHON } from "./support/transformers.ts";

const ROWS = 12;

let server: S3Server;
let bucket: string;
let machine: Machine;
beforeAll(async () => {
  server = sharedS3("weed");
  bucket = await makeBucket(server, "reader");
  machine = new Machine(credentialEnv(server));
  writeRows(machine, ROWS, mulberry32(3));
});
afterAll(() => machine?.remove());

/** What Python reads of each row, as JSON: ids, mask, the states' bits in hex. */
const SCRIPT = `
import json, pickle, sys, forebay
run = pickle.loads(pickle.dumps(forebay.open(sys.argv[1], endpoint=sys.argv[2] or None)))
for row in run.rows.tolist():
    sample, checked = run[row], run.read(row, check=True)
    assert (sample.states == checked.states).all()
    print(json.dumps([row, sample.token_ids.tolist(), sample.loss_mask.tolist(), sample.states.tobytes().hex()]))
`;

test.each(["s3", "file"])("Python reads from %s what forebay read reads, sample by sample", async (kind) => {
  const isS3 = kind === "s3";
  const address = isS3 ? `s3://${bucket}/p/run` : `file:${machine.path("store")}/run`;
  const endpoint = isS3 ? server.endpoint : null;
  const subject: KillSubject = { machine, address, endpoint, rows: ROWS, packBytes: "16KiB" };
  const ran = await machine.run(runArgs(subject));
  expect(ran, ran.stderr).toMatchObject({ code: 0 });
  const { stdout, stderr } = spawnSync(VENV_PYTHON, ["-c", SCRIPT, address, endpoint ?? ""], {
    env: { ...machine.env, PYTHONPATH: join(ROOT, "python") },
    encoding: "utf8",
    maxBuffer: 2 ** 26,
  });
  expect(stderr).toBe("");
  const rows = stdout
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line));
  expect(rows.map(([row]) => row)).toEqual(Array.from({ length: ROWS }, (_, row) => row));
  for (const [row, ids, mask, hex] of rows.slice(0, 4)) {
    const flags = endpoint ? ["--endpoint", endpoint] : [];
    const read = await machine.run(["read", address, String(row), "--json", ...flags]);
    const told = JSON.parse(read.stdout);
    expect(ids).toEqual(told.token_ids);
    expect(mask).toEqual(told.loss_mask);
    expect(rmsOf(hex, told.shape)).toEqual(told.rms);
  }
});

/** Of each tap over all tokens, added up in the order in which forebay read adds. */
function rmsOf(hex: string, [tokens, taps, hidden]: [number, number, number]): number[] {
  const bytes = Buffer.from(hex, "hex");
  return Array.from({ length: taps }, (_, tap) => {
    let sum = 0;
    for (let token = 0; token < tokens; token += 1) {
      for (let i = 0; i < hidden; i += 1) {
        const pattern = bytes.readUInt16LE(2 * ((token * taps + tap) * hidden + i));
        sum += new Float32Array(Uint32Array.of(pattern * 0x10000).buffer)[0]! ** 2;
      }
    }
    return Math.sqrt(sum / (tokens * hidden));
  });
}
