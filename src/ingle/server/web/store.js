// Conversations, kept in this browser alone.

const opened = new Promise((resolve, reject) => {
  const request = indexedDB.open("ingle", 1);
  request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

async function run(mode, work) {
  const store = (await opened).transaction("conversations", mode).objectStore("conversations");
  return new Promise((resolve, reject) => {
    const request = work(store);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

export const save = (conversation) => run("readwrite", (store) => store.put(conversation));
export const remove = (id) => run("readwrite", (store) => store.delete(id));
export const all = async () => (await run("readonly", (store) => store.getAll())).sort((a, b) => b.changed - a.changed);

export const settings = {
  read: () => { try { return JSON.parse(localStorage.getItem("ingle-settings")) ?? {}; } catch { return {}; } },
  write: (values) => localStorage.setItem("ingle-settings", JSON.stringify(values)),
};
