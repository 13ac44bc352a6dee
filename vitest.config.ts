import { defineConfig } from "vitest/config";

/**
 * `unit` stands beside the source; `system` drives dist/ against real servers; `quiet` does so with nothing beside it,
 * because it holds one speed against another; `long` is the slow sweeps.
 */
export default defineConfig({
  test: {
    projects: [
      { test: { name: "unit", include: ["src/**/*.test.ts", "web/**/*.test.ts"], testTimeout: 30_000 } },
      {
        test: {
          name: "system",
          include: ["test/**/*.test.ts"],
          exclude: ["test/long/**", "test/quiet/**"],
          testTimeout: 180_000,
          hookTimeout: 120_000,
          globalSetup: ["test/support/global-setup.ts"],
        },
      },
      {
        test: {
          name: "quiet",
          include: ["test/quiet/**/*.test.ts"],
          testTimeout: 180_000,
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
    maxWorkers: 2,
  },
});
