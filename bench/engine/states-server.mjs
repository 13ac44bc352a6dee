// A vLLM server that computes nothing, in a process of its own: for each prompt it writes the connector's file with the
// same states, into memory as vLLM does. Arguments: FOLDER TAPS HIDDEN MODEL. Answers each line with {"url"}.
import { closeSync, openSync, renameSync, writeFileSync, writeSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { buildHeader } from "../../dist/base/safetensors.js";

const [folder, taps, hidden, model] = process.argv.slice(2);
const tokenBytes = Number(taps) * Number(hidden) * 2;
const TOKENS_MAX = 512;
/** Numbers between 1 and 2, of either sign. */
const states = Uint16Array.from(
  { length: (TOKENS_MAX * tokenBytes) / 2 },
  (_, i) => 0x3f80 | (Math.imul(i, 2_654_435_761) >>> 25) | (i % 3 === 0 ? 0x8000 : 0),
);
let files = 0;

const server = createServer(async (request, response) => {
  const answer = (body) => {
    response.setHeader("content-type", "application/json");
    response.end(JSON.stringify(body));
  };
  if (request.url === "/version") return answer({ version: "0.32.0" });
  if (request.url === "/v1/models") {
    return answer({ data: [{ id: model, owned_by: "vllm", root: model, max_model_len: TOKENS_MAX + 1 }] });
  }
  if (request.url !== "/v1/completions") return response.end();
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const { prompt, request_id: id } = JSON.parse(Buffer.concat(chunks).toString());
  const path = join(folder, `cmpl-${id}-0-${(files++).toString(16).padStart(8, "0")}.safetensors`);
  writeConnectorFile(path, prompt);
  answer({
    choices: [{ token_ids: [0], prompt_token_ids: prompt }],
    kv_transfer_params: { hidden_states_path: path },
  });
});
server.listen(0, "127.0.0.1", () => {
  const lines = createInterface({ input: process.stdin });
  lines.on("line", () => console.log(JSON.stringify({ url: `http://127.0.0.1:${server.address().port}` })));
  lines.on("close", () => process.exit(0));
});

function writeConnectorFile(path, ids) {
  writeFileSync(`${path}.lock`, "");
  const header = buildHeader(
    [
      { name: "token_ids", dtype: "I64", shape: [ids.length] },
      { name: "hidden_states", dtype: "BF16", shape: [ids.length, Number(taps), Number(hidden)] },
    ],
    {},
  );
  const fd = openSync(`${path}.tmp`, "w", 0o600);
  for (const bytes of [
    header,
    BigInt64Array.from(ids, BigInt),
    states.subarray(0, (ids.length * tokenBytes) / 2),
  ]) {
    const view = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    for (let done = 0; done < view.length; ) done += writeSync(fd, view, done);
  }
  closeSync(fd);
  renameSync(`${path}.tmp`, path);
}
