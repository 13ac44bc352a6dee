// Answers each line of products [[rows, columns, depth], ...] with the best GFLOP/s of ONNX Runtime's own matrix
// product, in one line: a process of its own. Argument: threads.
import { createInterface } from "node:readline";
import { InferenceSession, Tensor } from "onnxruntime-node";
import { GraphBuilder } from "../../dist/engine/onnx/graph.js";

const graph = new GraphBuilder();
graph.input("a", "float32", ["M", "K"]);
graph.input("b", "float32", ["N", "K"]);
const options = { domain: "com.microsoft", attributes: { transB: 1 }, name: "c" };
graph.output(graph.node("FusedMatMul", ["a", "b"], options), "float32", ["M", "N"]);
const session = await InferenceSession.create(graph.build(), { intraOpNumThreads: Number(process.argv[2]) });
const filled = (rows, columns) =>
  new Tensor("float32", new Float32Array(rows * columns).fill(0.5), [rows, columns]);

for await (const line of createInterface({ input: process.stdin })) {
  let gflops = 0;
  for (const [m, n, k] of JSON.parse(line)) {
    const feeds = { a: filled(m, k), b: filled(n, k) };
    for (let turn = 0; turn < 4; turn += 1) {
      const startMs = performance.now();
      await session.run(feeds);
      gflops = Math.max(gflops, (2 * m * n * k) / (performance.now() - startMs) / 1e6);
    }
  }
  console.log(JSON.stringify({ gflops }));
}
