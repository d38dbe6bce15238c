/* The most confident errors, as pictures where there are any. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, whole, missing, panel, note } = C;

  function aboveSentence({ threshold, errors, samples }) {
    const least = `a confidence of at least ${C.short(threshold)}`;
    return samples
      ? `${whole(errors)} of the ${whole(samples)} samples with ${least} are wrong.`
      : `No sample has ${least}.`;
  }

  function errorsPanel(subject) {
    const errors = subject.errors || [],
      above = subject.errors_above;
    const title = "Most confident errors";
    const sentence = above ? `${aboveSentence(above)} ` : "";
    if (!errors.length) return { element: panel("errors", title, note(`${sentence}There is no error to show.`)) };
    const place = C.atOne(subject);
    const lead = note(`${sentence}The ${whole(errors.length)} most confident errors:`);
    const pictured = errors.some((error) => error.image);
    const body = pictured ? gallery(errors) : errorTable(errors);
    return { element: panel("errors", [title, " ", place.element], lead, body), update: place.update };
  }

  const rowName = (error) => (missing(error.index) ? `row ${error.row} (from 0)` : `sample ${error.index}`);

  const gallery = (errors) =>
    C.scroller(h("ul", { class: "gallery" }, errors.map(errorCard)), { label: "Most confident errors", rows: "li" });

  function errorCard(error) {
    const safe = typeof error.image === "string" && error.image.startsWith("data:image/");
    const picture = safe
      ? h("img", { src: error.image, alt: `${rowName(error)}, true label ${error.label}` })
      : h("span", { class: "no-picture" }, "no picture");
    return h(
      "li",
      { class: "error", "data-row": error.row },
      picture,
      h(
        "p",
        {},
        h(
          "span",
          { class: "error-said" },
          `predicted ${error.predicted}, `,
          h("span", { class: "nowrap" }, C.probability(error.confidence)),
        ),
        h(
          "span",
          { class: "error-is" },
          `true label ${error.label}, `,
          h("span", { class: "nowrap" }, C.probability(error.label_probability)),
        ),
        h("span", { class: "dim" }, rowName(error)),
      ),
    );
  }

  function errorTable(errors) {
    const columns = [
      {
        key: "row",
        title: "Sample",
        header: true,
        value: (row) => (missing(row.index) ? row.row : row.index),
        text: rowName,
      },
      { key: "predicted", title: "Predicted", value: (row) => row.predicted, text: (row) => row.predicted },
      {
        key: "confidence",
        title: "Confidence",
        numeric: true,
        value: (row) => row.confidence,
        text: (row) => C.probability(row.confidence),
      },
      { key: "label", title: "True label", value: (row) => row.label, text: (row) => row.label },
      {
        key: "label_probability",
        title: "Its probability",
        numeric: true,
        value: (row) => row.label_probability,
        text: (row) => C.probability(row.label_probability),
      },
    ];
    return C.dataTable({ columns, rows: errors, label: "Most confident errors", name: "errors" }).element;
  }

  Object.assign(C, { errorsPanel });
})();
