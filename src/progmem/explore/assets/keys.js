// Keys press the buttons of the page: n next, p previous, 1 to 9 a label, 0 no label, u undo,
// s the stretch that is offered, w the whole recording. Text that is being written is left alone.
document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, textarea, [contenteditable]") || event.altKey || event.metaKey) return;
  if (event.ctrlKey && event.key !== "z") return;
  const press = (found) => found && (event.preventDefault(), found.click());
  const ids = { n: "next", ArrowRight: "next", p: "previous", ArrowLeft: "previous", u: "undo", z: "undo",
    0: "erase", w: "whole" };
  if (event.key === "z" && !event.ctrlKey) return;
  if (event.key in ids) return press(document.getElementById(ids[event.key]));
  if (event.key === "s") return press(document.querySelector("#suggestion button"));
  if (/^[1-9]$/.test(event.key)) press(document.querySelectorAll("#classes button")[event.key - 1]);
});

// A figure that is drawn anew would end a drag, so the page does not look for news meanwhile.
const watching = (disabled) => window.dash_clientside.set_props("watch", { disabled });
document.addEventListener("pointerdown", (event) => event.target.closest(".js-plotly-plot") && watching(true));
document.addEventListener("pointerup", () => watching(false));
