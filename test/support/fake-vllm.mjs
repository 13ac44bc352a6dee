// A vLLM server with its hidden-states connector, as far as an engine sees one: answers and files as recorded from
// vLLM 0.32 (fixtures/vllm/README.md), states made up. In a test: `await FakeVllm.start(...)`. As a program it takes
// the arguments of `vllm serve MODEL ...` that Forebay gives.
import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

/**
 * What it may do wrong, from the next completion on: { kind } of
 * late, locked-while-writing (both as real servers do), never, dead-engine, short, grows-stuck, too-long, garbage, unreadable, locked-for-ever,
 * other-ids-in-file, other-ids-in-answer, other-width, other-layers, chunked-prefill, prefix-cache, zeros, nan,
 * constant, f8, connector-off, no-ids, drops, busy-once, hangs, reply (status, contentType, body), and
 * recorded (a recorded answer with the bytes of its file).
 */
export class FakeVllm {
  /** model: directory with config.json; layerIds: vLLM's, as asked for at its start; folder: the connector's. */
  static async start({
    model,
    served = "tiny",
    layerIds,
    folder,
    port = 0,
    dtype = "BF16",
    maxModelLen = 512,
    states = null,
    nextToken = null,
  }) {
    const config = JSON.parse(readFileSync(join(model, "config.json"), "utf8"));
    const fake = new FakeVllm();
    mkdirSync(folder, { recursive: true });
    Object.assign(fake, { model, served, folder, dtype, maxModelLen, config });
    // Columns ascend whatever order was asked for.
    fake.layerIds = [...layerIds].sort((a, b) => a - b);
    fake.states = states ?? madeUpStates;
    fake.nextToken = nextToken ?? (() => 0);
    fake.fault = null;
    fake.requests = [];
    fake.openMax = 0;
    fake.open = 0;
    fake.owner = "vllm";
    fake.version = "0.32.0";
    fake.healthStatus = 200;
    fake.holders = [];
    fake.seen = new Set();
    fake.server = createServer((request, response) => void fake.answer(request, response));
    await new Promise((resolve) => fake.server.listen(port, "127.0.0.1", resolve));
    fake.port = fake.server.address().port;
    fake.url = `http://127.0.0.1:${fake.port}`;
    return fake;
  }

  async stop() {
    for (const holder of this.holders) holder.stdin.end();
    await Promise.all(this.holders.map((holder) => holder.gone));
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }

  async answer(request, response) {
    const path = request.url;
    if (path === "/health") return this.reply(response, this.healthStatus, "", "text/plain");
    if (path === "/version" && this.version) return this.reply(response, 200, { version: this.version });
    if (path === "/v1/models") {
      const model = {
        id: this.served,
        object: "model",
        owned_by: this.owner,
        root: this.model,
        parent: null,
        max_model_len: this.maxModelLen,
      };
      return this.reply(response, 200, { object: "list", data: [model] });
    }
    if (path !== "/v1/completions") return this.reply(response, 404, { detail: "Not Found" });
    if (request.method !== "POST") return this.reply(response, 405, { detail: "Method Not Allowed" });
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const body = JSON.parse(Buffer.concat(chunks).toString());
    this.requests.push(body);
    this.open += 1;
    this.openMax = Math.max(this.openMax, this.open);
    // Time for others to come in, as in a server's queue.
    await pause(5);
    this.open -= 1;
    return this.complete(body, response);
  }

  async complete(body, response) {
    const fault = this.fault ?? { kind: "none" };
    const ids = body.prompt;
    if (fault.kind === "hangs") return;
    if (fault.kind === "drops") {
      this.server.close();
      this.server.closeAllConnections();
      return;
    }
    if (fault.kind === "reply") return this.reply(response, fault.status, fault.body, fault.contentType);
    if (fault.kind === "busy-once") {
      this.fault = null;
      return this.reply(response, 503, "<html>busy</html>", "text/html");
    }
    if (body.model !== this.served) {
      return this.reply(response, 404, {
        error: {
          message: `The model \`${body.model}\` does not exist.`,
          type: "NotFoundError",
          param: "model",
          code: 404,
        },
      });
    }
    const id = `cmpl-${body.request_id ?? randomBytes(8).toString("hex")}`;
    const path = join(this.folder, `${id}-0-${randomBytes(4).toString("hex")}.safetensors`);
    await this.write(path, ids, fault);
    if (fault.kind === "recorded") {
      return this.reply(response, 200, {
        ...fault.response,
        kv_transfer_params: { hidden_states_path: path },
      });
    }
    if (fault.kind === "dead-engine") this.healthStatus = 503;
    const echoed = fault.kind === "other-ids-in-answer" ? ids.map((one) => one + 1) : ids;
    this.reply(response, 200, {
      id,
      object: "text_completion",
      model: this.served,
      choices: [
        {
          index: 0,
          text: "",
          finish_reason: "length",
          token_ids: body.return_token_ids ? [this.nextToken(ids)] : null,
          prompt_token_ids: body.return_token_ids && fault.kind !== "no-ids" ? echoed : null,
        },
      ],
      usage: { prompt_tokens: ids.length, total_tokens: ids.length + 1, completion_tokens: 1 },
      kv_transfer_params: fault.kind === "connector-off" ? null : { hidden_states_path: path },
    });
  }

  /** The connector's part: the lock's file stays for ever, and the file has mode 0600. */
  async write(path, ids, fault) {
    if (fault.kind === "never" || fault.kind === "dead-engine" || fault.kind === "connector-off") {
      if (fault.kind !== "connector-off") writeFileSync(`${path}.lock`, "");
      return;
    }
    const bytes = this.bytes(ids, fault);
    const put = (content) => writeFileSync(path, content, { mode: 0o600 });
    switch (fault.kind) {
      case "locked-while-writing": {
        // The file has its whole size before it has its bytes.
        const release = await this.hold(`${path}.lock`);
        const hollow = Buffer.alloc(bytes.length);
        bytes.copy(hollow, 0, 0, bytes.length >> 1);
        put(hollow);
        setTimeout(() => {
          put(bytes);
          release();
        }, 150);
        return;
      }
      case "locked-for-ever":
        put(bytes);
        await this.hold(`${path}.lock`);
        return;
      case "late":
        writeFileSync(`${path}.lock`, "");
        setTimeout(() => put(bytes.subarray(0, bytes.length - 100)), 50);
        setTimeout(() => put(bytes), 120);
        return;
      case "short":
        writeFileSync(`${path}.lock`, "");
        put(bytes.subarray(0, bytes.length - 100));
        return;
      case "too-long":
        put(Buffer.concat([bytes, Buffer.alloc(8)]));
        return;
      case "unreadable":
        symlinkSync(path, path);
        return;
      case "garbage":
        put(Buffer.from("<html>no safetensors at all</html>"));
        return;
      default:
        writeFileSync(`${path}.lock`, "");
        put(bytes);
    }
  }

  /** The file of one prompt; `token_ids` stands first. */
  bytes(ids, fault) {
    if (fault.kind === "recorded" && fault.file) return fault.file;
    const key = ids.join();
    const isCached = this.seen.has(key);
    this.seen.add(key);
    let told = ids;
    // A chunk of 16 tokens, a cache of blocks of 16.
    if (fault.kind === "chunked-prefill" && ids.length > 16) told = ids.slice(0, 16);
    if (fault.kind === "prefix-cache" && isCached && ids.length > 16) told = ids.slice(16);
    const layers =
      fault.kind === "other-layers" ? [...this.layerIds, this.config.num_hidden_layers + 1] : this.layerIds;
    const hidden = fault.kind === "other-width" ? this.config.hidden_size * 2 : this.config.hidden_size;
    const floats = this.states(told, layers, hidden, this);
    if (fault.kind === "zeros") floats.fill(0);
    if (fault.kind === "constant") floats.fill(1.5);
    if (fault.kind === "nan") floats[floats.length >> 1] = Number.NaN;
    const tokenIds = BigInt64Array.from(
      fault.kind === "other-ids-in-file" ? told.map((id) => id + 1) : told,
      BigInt,
    );
    const states = fault.kind === "f8" ? Buffer.alloc(floats.length, 0x38) : toDtype(floats, this.dtype);
    const dtype = fault.kind === "f8" ? "F8_E4M3" : this.dtype;
    return safetensors([
      { name: "token_ids", dtype: "I64", shape: [told.length], data: Buffer.from(tokenIds.buffer) },
      { name: "hidden_states", dtype, shape: [told.length, layers.length, hidden], data: states },
    ]);
  }

  /** Takes the lock in a process of its own, as only a process has one; resolves once it holds. */
  async hold(lock) {
    writeFileSync(lock, "");
    const holder = spawn("flock", ["-x", lock, "sh", "-c", "echo held; exec cat >/dev/null"], {
      stdio: ["pipe", "pipe", "inherit"],
    });
    holder.gone = new Promise((resolve) => holder.once("exit", resolve));
    this.holders.push(holder);
    await new Promise((resolve) => holder.stdout.once("data", resolve));
    return () => holder.stdin.end();
  }

  reply(response, status, body, contentType = "application/json") {
    const text = typeof body === "string" ? body : JSON.stringify(body);
    response.writeHead(status, { "content-type": contentType, "content-length": Buffer.byteLength(text) });
    response.end(text);
  }
}

/** f32 [tokens, layers, hidden]: of each number a mix of all ids up to the token, the layer and the channel. */
export function madeUpStates(ids, layerIds, hidden) {
  const floats = new Float32Array(ids.length * layerIds.length * hidden);
  let at = 0;
  let past = 1;
  for (const id of ids) {
    past = (Math.imul(past, 31) + id + 1) | 0;
    for (const layer of layerIds) {
      let state = Math.imul(past ^ Math.imul(layer + 1, 0x9e3779b1), 0x85ebca6b) | 1;
      for (let i = 0; i < hidden; i += 1) {
        // xorshift32
        state ^= state << 13;
        state ^= state >>> 17;
        state ^= state << 5;
        floats[at++] = state / 2 ** 29;
      }
    }
  }
  return floats;
}

function toDtype(floats, dtype) {
  if (dtype === "F32") return Buffer.from(floats.buffer);
  const words = new Uint32Array(floats.buffer);
  if (dtype === "BF16") {
    const bf16 = Uint16Array.from(words, (word) =>
      (word & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : (word + 0x7fff + ((word >>> 16) & 1)) >>> 16,
    );
    return Buffer.from(bf16.buffer);
  }
  // F16, truncated: only numbers within [2^-14, 2^15) are made up.
  const f16 = Uint16Array.from(words, (word) => {
    const exponent = ((word >>> 23) & 0xff) - 112;
    return exponent <= 0
      ? (word >>> 16) & 0x8000
      : ((word >>> 16) & 0x8000) | (exponent << 10) | ((word >>> 13) & 0x3ff);
  });
  return Buffer.from(f16.buffer);
}

function safetensors(tensors) {
  let offset = 0;
  const entries = tensors.map(({ name, dtype, shape, data }) => {
    const begin = offset;
    offset += data.length;
    return [name, { dtype, shape, data_offsets: [begin, offset] }];
  });
  const header = JSON.stringify(Object.fromEntries(entries));
  const padded = header.padEnd(Math.ceil(header.length / 8) * 8);
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(padded.length));
  return Buffer.concat([length, Buffer.from(padded), ...tensors.map(({ data }) => data)]);
}

function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** `vllm serve MODEL --port P --served-model-name NAME --speculative_config JSON --kv_transfer_config JSON ...` */
async function serve(argv) {
  const after = (name) => argv[argv.indexOf(name) + 1];
  if (argv[0] !== "serve" || argv.includes("--fail")) {
    console.error("vllm: this fake was told to fail");
    process.exit(1);
  }
  console.log("a line on stdout, as vLLM logs");
  const speculative = JSON.parse(after("--speculative_config"));
  const fake = await FakeVllm.start({
    model: argv[1],
    served: after("--served-model-name"),
    port: Number(after("--port")),
    layerIds: speculative.draft_model_config.hf_config.eagle_aux_hidden_state_layer_ids,
    folder: JSON.parse(after("--kv_transfer_config")).kv_connector_extra_config.shared_storage_path,
  });
  if (process.env.FAKE_VLLM_NOTES) {
    writeFileSync(
      process.env.FAKE_VLLM_NOTES,
      JSON.stringify({ pid: process.pid, argv, folder: fake.folder, port: fake.port }),
    );
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await serve(process.argv.slice(2));
