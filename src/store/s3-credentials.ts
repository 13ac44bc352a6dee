import { defaultProvider } from "@aws-sdk/credential-provider-node";

export interface Credentials {
  accessKeyId: string;
  secretAccessKey: string;
  sessionToken?: string;
}

/**
 * The SDK's default chain (environment, profiles, SSO, web identity, process, container, instance), read when first
 * needed and again shortly before they expire. Nothing else in the program holds a credential.
 */
export class CredentialSource {
  readonly #profile: string | null;
  readonly #fixed: (() => Promise<Credentials>) | undefined;
  #chain: () => Promise<Credentials>;

  constructor(profile: string | null, fixed?: () => Promise<Credentials>) {
    this.#profile = profile;
    this.#fixed = fixed;
    this.#chain = this.#makeChain();
  }

  get(): Promise<Credentials> {
    return this.#chain();
  }

  /** Forgets what was read, the cached config files included. The next request reads anew. */
  reload(): void {
    this.#chain = this.#makeChain();
  }

  #makeChain(): () => Promise<Credentials> {
    if (this.#fixed) return this.#fixed;
    const chain = defaultProvider({
      ignoreCache: true,
      ...(this.#profile === null ? {} : { profile: this.#profile }),
    });
    return () => chain();
  }
}
