import { useState } from "react";

export function App() {
  const [count, setCount] = useState(0);
  return (
    <main>
      <h1>Hello from React</h1>
      <button type="button" onClick={() => setCount(count + 1)}>
        clicked {count} times
      </button>
      <p>
        Edit <code>src/App.tsx</code> and see it change.
      </p>
    </main>
  );
}
