import { Agent as HttpAgent, request as httpRequest, type IncomingMessage } from "node:http";
import { Agent as HttpsAgent, request as httpsRequest } from "node:https";
import { z } from "zod";
import { fullJitterMs, sleep } from "../../base/backoff.ts";
import { plainText } from "../../base/log.ts";
import { refused, serverGone, VllmError } from "./failure.ts";

export interface ServedModel {
  id: string;
  /** What the server loaded: a path or a hub id; null where it does not say. */
  root: string | null;
  /** The longest prompt is one token shorter: the server insists on making one. */
  maxModelTokens: number | null;
}

export interface Completion {
  /** Where the connector writes the prompt's states, on the server's machine; null: the connector is off. */
  path: string | null;
  /** What the server says it ran; null where it does not say. */
  promptIds: number[] | null;
  /** The token that the model goes on with, at temperature 0. */
  nextToken: number | null;
}

interface HttpRequest {
  method: "GET" | "POST";
  path: string;
  body: string | undefined;
  /** Aborts it, also while the answer is being read. */
  deadline: AbortSignal | undefined;
}

interface HttpAnswer {
  status: number;
  type: string;
  text: string;
}

/** The ids of a prompt of a million tokens, twice, take less. */
const ANSWER_BYTES_MAX = 64 * 2 ** 20;
/** What a proxy says while the server behind it is busy or comes back. */
const BUSY = new Set([429, 502, 503, 504]);
const BUSY_RETRIES = 4;
const BUSY_DELAY = { baseMs: 500, capMs: 8_000, random: Math.random };
/** A server answers what it is asked about itself in milliseconds; one that is tokenising a long prompt, in seconds. */
const LOOK_MS_MAX = 10_000;

const id = z.number().int().nonnegative();
const ModelList = z.object({
  data: z.array(
    z.object({
      id: z.string(),
      owned_by: z.string().nullish(),
      root: z.string().nullish(),
      max_model_len: id.nullish(),
    }),
  ),
});
const Completed = z.object({
  choices: z
    .array(z.object({ prompt_token_ids: z.array(id).nullish(), token_ids: z.array(id).nullish() }))
    .length(1),
  kv_transfer_params: z
    .object({ hidden_states_path: z.string().nullish(), handle: z.string().nullish() })
    .nullish(),
});
/** vLLM's own shape, FastAPI's for routes that it does not have, and vLLM's before 0.10. */
const ErrorBody = z.union([
  z.object({ error: z.object({ message: z.string() }) }).transform(({ error }) => error.message),
  z.object({ error: z.string() }).transform(({ error }) => error),
  z.object({ detail: z.string() }).transform(({ detail }) => detail),
  z.object({ message: z.string() }).transform(({ message }) => message),
]);

/**
 * One vLLM server over HTTP. Every method rejects with a VllmError whose message is for a person. A GET rejects after
 * `lookMsMax` (default 10 s); how long a completion may take is for who waits for it.
 */
export class VllmClient {
  readonly url: string;
  readonly #agent: HttpAgent | HttpsAgent;
  readonly #lookMsMax: number;

  constructor(url: string, { lookMsMax = LOOK_MS_MAX }: { lookMsMax?: number } = {}) {
    this.url = url.replace(/\/+$/, "");
    this.#lookMsMax = lookMsMax;
    const options = { keepAlive: true, maxSockets: Number.POSITIVE_INFINITY };
    this.#agent = url.startsWith("https:") ? new HttpsAgent(options) : new HttpAgent(options);
  }

  /** Whether the server answers and its engine lives. Never rejects. */
  async isWell(): Promise<boolean> {
    return this.#once("GET", "/health").then(
      ({ status }) => status === 200,
      () => false,
    );
  }

  /** Rejects unless `/health` says that all is well. */
  async needHealth(): Promise<void> {
    const answer = await this.#once("GET", "/health");
    if (answer.status === 200) return;
    if (answer.status === 503)
      throw serverGone(`the engine of the vLLM server at ${this.url} is dead: restart it`);
    throw this.#unexpected("GET /health", answer);
  }

  /** What it serves. Rejects where it is no vLLM server. */
  async models(): Promise<ServedModel[]> {
    const { data } = this.#parse(ModelList, "GET /v1/models", await this.#once("GET", "/v1/models"));
    const other = data.find(({ owned_by }) => owned_by !== "vllm");
    if (other || data.length === 0) {
      const found = other ? `models owned by "${plainText(other.owned_by ?? "nobody", 40)}"` : "no model";
      throw refused(`expected a vLLM server at ${this.url}, found one with ${found}`);
    }
    return data.map((model) => ({
      id: model.id,
      root: model.root ?? null,
      maxModelTokens: model.max_model_len ?? null,
    }));
  }

  /** "0.32.0"; null where the server does not tell. */
  async version(): Promise<string | null> {
    const answer = await this.#once("GET", "/version");
    try {
      return z.object({ version: z.string() }).parse(JSON.parse(answer.text)).version;
    } catch {
      // Some gateways pass on /v1 only; an old server shows itself by its answers.
      return null;
    }
  }

  /**
   * Has the server run `ids`, one prompt a request: for two it writes two files and names one. What it says it ran
   * is for the caller to compare (needStatesOf), who also removes the file.
   */
  async complete(request: { model: string; ids: readonly number[]; requestId: string }): Promise<Completion> {
    const body = JSON.stringify({
      model: request.model,
      prompt: request.ids,
      max_tokens: 1,
      temperature: 0,
      return_token_ids: true,
      request_id: request.requestId,
    });
    const answer = await this.#patiently("POST", "/v1/completions", body);
    const { choices, kv_transfer_params: transfer } = this.#parse(Completed, "POST /v1/completions", answer);
    const choice = choices[0]!;
    const path = transfer?.hidden_states_path ?? transfer?.handle ?? null;
    return {
      path: path === null ? null : needConnectorPath(path),
      promptIds: choice.prompt_token_ids ?? null,
      nextToken: choice.token_ids?.[0] ?? null,
    };
  }

  close(): void {
    this.#agent.destroy();
  }

  async #patiently(method: "GET" | "POST", path: string, body: string): Promise<HttpAnswer> {
    for (let attempt = 0; ; attempt += 1) {
      const answer = await this.#once(method, path, body);
      if (!BUSY.has(answer.status) || attempt === BUSY_RETRIES) return answer;
      await sleep(fullJitterMs(attempt, BUSY_DELAY));
    }
  }

  async #once(method: "GET" | "POST", path: string, body?: string): Promise<HttpAnswer> {
    const deadline = method === "GET" ? AbortSignal.timeout(this.#lookMsMax) : undefined;
    try {
      return await this.#send({ method, path, body, deadline });
    } catch (error) {
      if (error instanceof VllmError) throw error;
      if (deadline?.aborted) {
        const seconds = this.#lookMsMax / 1000;
        throw serverGone(`expected an answer to GET ${path} of ${this.url} within ${seconds} s, found none`);
      }
      throw serverGone(`no answer from the vLLM server at ${this.url}: ${(error as Error).message}`);
    }
  }

  /** Once more where a kept connection turns out to have been closed meanwhile: the server never saw that request. */
  #send(asked: HttpRequest, isAgain = false): Promise<HttpAnswer> {
    const { method, path, body, deadline: signal } = asked;
    const send = this.url.startsWith("https:") ? httpsRequest : httpRequest;
    return new Promise((resolve, reject) => {
      const headers = body === undefined ? {} : { "content-type": "application/json" };
      const options = { method, headers, agent: this.#agent, ...(signal ? { signal } : {}) };
      const request = send(`${this.url}${path}`, options, (response) => {
        this.#read(response).then(resolve, reject);
      });
      request.on("error", (error: NodeJS.ErrnoException) => {
        const wasStale = request.reusedSocket && (error.code === "ECONNRESET" || error.code === "EPIPE");
        if (wasStale && !isAgain) resolve(this.#send(asked, true));
        else reject(error);
      });
      request.end(body);
    });
  }

  async #read(response: IncomingMessage): Promise<HttpAnswer> {
    const chunks: Buffer[] = [];
    let bytes = 0;
    for await (const chunk of response as AsyncIterable<Buffer>) {
      bytes += chunk.length;
      if (bytes > ANSWER_BYTES_MAX) {
        response.destroy();
        throw refused(`the answer of ${this.url} has over ${ANSWER_BYTES_MAX} bytes`);
      }
      chunks.push(chunk);
    }
    return {
      status: response.statusCode ?? 0,
      type: response.headers["content-type"] ?? "no content type",
      text: Buffer.concat(chunks).toString("utf8"),
    };
  }

  #parse<T>(schema: z.ZodType<T>, what: string, answer: HttpAnswer): T {
    if (answer.status !== 200) throw this.#unexpected(what, answer);
    const parsed = schema.safeParse(parseJson(answer.text));
    if (parsed.success) return parsed.data;
    const issue = parsed.error.issues[0];
    const where = issue && issue.path.length > 0 ? ` (${issue.path.join(".")}: ${issue.message})` : "";
    throw refused(`${what} of ${this.url}: expected vLLM's answer, found ${excerpt(answer)}${where}`);
  }

  /** An answer that is no 200. From 500 on the engine is not trusted any more. */
  #unexpected(what: string, answer: HttpAnswer): VllmError {
    const told = ErrorBody.safeParse(parseJson(answer.text)).data;
    const message = `${what} of ${this.url}: ${answer.status}: ${told ? plainText(told, 300) : excerpt(answer)}`;
    if (answer.status >= 500) return serverGone(`${message}; see the server's log`);
    if (answer.status === 401 || answer.status === 403) {
      return refused(`${message}; engines hold no secrets: start the server without --api-key`);
    }
    return refused(told ? message : `${message}; is this a vLLM server?`);
  }
}

/** Where the states of `ids` will be. Throws where the answer is for other ids, or names no file. */
export function needStatesOf(ids: readonly number[], { path, promptIds }: Completion): string {
  if (promptIds === null)
    throw refused("the server did not tell which ids it ran: vLLM 0.22 or newer is needed");
  if (promptIds.length !== ids.length) {
    throw refused(
      `expected an answer for ${ids.length} ids, found one for ${promptIds.length}: the server changes prompts`,
    );
  }
  const at = ids.findIndex((one, i) => one !== promptIds[i]);
  if (at >= 0) {
    throw refused(
      `expected an answer for id ${ids[at]} at ${at}, found ${promptIds[at]}: the server changes prompts`,
    );
  }
  if (path !== null) return path;
  throw refused(
    "the server has its hidden-states connector off: start it with --kv_transfer_config and --speculative_config, or let Forebay start it by --serve",
  );
}

/** The file will be read and removed: whatever a server names, it must look like what the connector writes. */
function needConnectorPath(path: string): string {
  if (/^\/[^\0\n]*\/[^/\0\n]+\.safetensors$/.test(path) && !path.includes("/../")) return path;
  throw refused(`expected the path of a connector's file, found "${plainText(path, 120)}"`);
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function excerpt({ type, text }: HttpAnswer): string {
  return `${plainText(type, 60)} "${plainText(text.trim(), 80)}"`;
}
