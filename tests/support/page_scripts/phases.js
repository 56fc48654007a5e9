// Each phase that is drawn, and how long it took or has taken; empty: it was not heard.
return [...document.querySelectorAll("[data-phase]")].map((each) => [
  each.dataset.phase,
  each.querySelector(".took").innerText,
])
