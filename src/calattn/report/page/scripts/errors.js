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
    const { errors } = subject,
      title = "Most confident errors";
    const sentence = `${aboveSentence(subject.errors_above)} `;
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

  const line = (kind, text, chance) =>
    h("span", { class: kind }, text, h("span", { class: "nowrap" }, C.probability(chance)));

  function errorCard(error) {
    const picture = error.image
      ? h("img", { src: error.image, alt: `${rowName(error)}, true label ${error.label}` })
      : h("span", { class: "no-picture" }, "no picture");
    return h(
      "li",
      { class: "error", "data-row": error.row },
      picture,
      h(
        "p",
        {},
        line("error-said", `predicted ${error.predicted}, `, error.confidence),
        line("error-is", `true label ${error.label}, `, error.label_probability),
        h("span", { class: "dim" }, rowName(error)),
      ),
    );
  }

  function errorTable(errors) {
    const probability = (key, title) => ({ key, title, numeric: true, text: (row) => C.probability(row[key]) });
    const columns = [
      { key: "row", title: "Sample", header: true, value: (row) => row.index ?? row.row, text: rowName },
      { key: "predicted", title: "Predicted" },
      probability("confidence", "Confidence"),
      { key: "label", title: "True label" },
      probability("label_probability", "Its probability"),
    ];
    return C.dataTable({ columns, rows: errors, label: "Most confident errors", name: "errors" }).element;
  }

  Object.assign(C, { errorsPanel });
})();
