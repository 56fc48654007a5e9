// How each rank is drawn: runs, parked, awaited, behind.
return [...document.querySelectorAll("[data-rank]")].map((each) => [
  each.dataset.rank,
  each.className.replace("rank ", ""),
])
