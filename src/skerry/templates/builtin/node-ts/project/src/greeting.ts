export function greeting(name: string | null): string {
  return `Hello from ${name ?? "Node and TypeScript"}`;
}
