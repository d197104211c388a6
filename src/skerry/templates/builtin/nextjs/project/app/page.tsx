import { Counter } from "./counter";

export default function Page() {
  return (
    <main>
      <h1>Hello from Next.js</h1>
      <Counter />
      <p>
        Edit <code>app/page.tsx</code> and see it change.
      </p>
    </main>
  );
}
