import { parentPort, workerData } from "node:worker_threads";
import { describeError } from "../base/errors.ts";
import { ChunkTokenizer, type ChunkTokenizerOptions, type ConversationChunk } from "./chunk-tokenizer.ts";

/** One tokenising thread: a chunk in, its tokens out, in order. A failure is a bug or a bad model, and ends the run. */
const tokenizer = new ChunkTokenizer(workerData as ChunkTokenizerOptions);

parentPort?.on("message", (chunk: ConversationChunk) => {
  void answer(chunk);
});

async function answer(chunk: ConversationChunk): Promise<void> {
  try {
    const tokens = await tokenizer.tokenize(chunk);
    const { ids, mask, lengths } = tokens;
    parentPort?.postMessage({ tokens }, [ids.buffer, mask.buffer, lengths.buffer] as ArrayBuffer[]);
  } catch (error) {
    parentPort?.postMessage({ failed: describeError(error) });
  }
}
