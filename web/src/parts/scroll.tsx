import type { ComponentChildren } from "preact";

/** What may be wider or longer than its place: scrolled within, by keyboard too, so that the page never is. */
export function Scroll(props: { label: string; tall?: boolean; children: ComponentChildren }) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: arrow keys scroll only what has the focus
    <section class={props.tall ? "scroll tall" : "scroll"} aria-label={props.label} tabIndex={0}>
      {props.children}
    </section>
  );
}
