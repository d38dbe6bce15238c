/* Where the numbers come from, and how each is defined. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, missing, view, panel, slug } = C;

  function provenancePanel(subject) {
    const facts = h(
      "dl",
      { class: "facts" },
      subject.provenance.map(([name, value]) => [
        h("dt", {}, name),
        h("dd", {}, missing(value) ? C.DASH : String(value)),
      ]),
    );
    const spec = subject.spec
      ? h(
          "details",
          { class: "spec" },
          h("summary", {}, "The whole specification"),
          h("pre", { tabindex: "0" }, subject.spec),
        )
      : null;
    return { element: panel("provenance", "Where it comes from", facts, spec) };
  }

  function methodsSection() {
    const entries = view.page.methods.map(([title, text]) =>
      h("div", { id: slug(title), tabindex: "-1" }, h("dt", {}, title), h("dd", {}, text)),
    );
    return h("section", { class: "methods" }, h("h2", {}, "How each number is defined"), h("dl", {}, entries));
  }

  Object.assign(C, { provenancePanel, methodsSection });
})();
