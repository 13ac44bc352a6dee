import { defineConfig } from "vitest/config";
import { BaseSequencer, type TestSpecification } from "vitest/node";

// As in main.ts: the SDK tells every process about Node versions of next year.
process.env.AWS_SDK_JS_NODE_VERSION_SUPPORT_WARNING_DISABLED ??= "true";

/** The files that take longest, from most to least: begun first, none of them is left running alone at the end. */
const SLOWEST = [
  "faults-store",
  "kills",
  "kill-sweep",
  "faults-control",
  "gate",
  "transformers-engine",
  "bad-input",
  "cli",
  "monitor-page",
  "vllm-engine",
  "faults-engine",
  "golden-run",
  "onnx-engine",
  "transformers-run",
  "transformers-conformance",
  "faults-disk",
];

class SlowestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const rank = ({ moduleId }: TestSpecification) => {
      const place = SLOWEST.findIndex((name) => moduleId.endsWith(`/test/${name}.test.ts`));
      return place < 0 ? SLOWEST.length : place;
    };
    return (await super.sort(files)).sort((a, b) => rank(a) - rank(b));
  }
}

/** A second, which is the default, is soon gone on a busy machine. */
const PATIENT = { poll: { interval: 20, timeout: 20_000 } };

/**
 * `unit` stands beside the source; `system` drives dist/ against real servers; `quiet` does so with nothing beside it,
 * because it holds one speed against another; `long` is the slow sweeps.
 */
export default defineConfig({
  test: {
    projects: [
      {
        test: {
          name: "unit",
          include: ["src/**/*.test.ts", "web/**/*.test.ts"],
          testTimeout: 30_000,
          expect: PATIENT,
          // A process a worker, not one a file: half of the time of a small file is loading what it tests.
          isolate: false,
        },
      },
      {
        test: {
          name: "system",
          include: ["test/**/*.test.ts"],
          exclude: ["test/long/**", "test/quiet/**"],
          testTimeout: 180_000,
          expect: PATIENT,
          hookTimeout: 120_000,
          globalSetup: ["test/support/global-setup.ts"],
        },
      },
      {
        test: {
          name: "quiet",
          include: ["test/quiet/**/*.test.ts"],
          testTimeout: 180_000,
          expect: PATIENT,
          hookTimeout: 120_000,
          // Somebody else's burst on the machine is no fault of the verdict.
          retry: 1,
          globalSetup: ["test/support/global-setup.ts"],
        },
      },
      {
        test: {
          name: "long",
          include: ["test/long/**/*.test.ts"],
          testTimeout: 3_600_000,
          hookTimeout: 600_000,
          globalSetup: ["test/support/global-setup.ts"],
        },
      },
    ],
    // Files of the system project wait for processes and servers half of their time.
    maxWorkers: 3,
    sequence: { sequencer: SlowestFirst },
  },
});
