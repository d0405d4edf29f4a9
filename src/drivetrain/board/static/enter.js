// @ts-check
// The first address: keep the key that commands need, and take the token out of the address and the history.
const key = document.querySelector('meta[name="board-key"]')?.getAttribute("content") ?? "";
localStorage.setItem("board-key", key);
location.replace("/" + location.hash);
