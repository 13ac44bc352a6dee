import { parentPort, workerData } from "node:worker_threads";
import { describeError } from "../base/errors.ts";
import { ChunkTokenizer, type ChunkTokenizerOptions, type ConversationChunk } from "./chunk-tokenizer.ts";

/** One tokenising thread: numbered chunks in, their tokens out in whatever order they are done. A failure is a bug or a bad model, and ends the run. */
const tokenizer = new ChunkTokenizer(workerData as ChunkTokenizerOptions);

parentPort?.on("message", ({ id, chunk }: { id: number; chunk: ConversationChunk }) => {
  void answer(id, chunk);
});

async function answer(id: number, chunk: ConversationChunk): Promise<void> {
  try {
    const tokens = await tokenizer.tokenize(chunk);
    const { ids, mask, lengths } = tokens;
    parentPort?.postMessage({ id, tokens }, [ids.buffer, mask.buffer, lengths.buffer] as ArrayBuffer[]);
  } catch (error) {
    parentPort?.postMessage({ id, failed: describeError(error) });
  }
}
