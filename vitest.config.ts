import { defineConfig } from "vitest/config";

/** `unit` stands beside the source; `system` drives dist/ against real servers; `long` is the slow sweeps. */
export default defineConfig({
  test: {
    projects: [
      { test: { name: "unit", include: ["src/**/*.test.ts", "web/**/*.test.ts"], testTimeout: 30_000 } },
      {
        test: {
          name: "system",
          include: ["test/**/*.test.ts"],
          exclude: ["test/long/**"],
          testTimeout: 180_000,
          hookTimeout: 120_000,
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
