import type { PageServerLoad } from "./$types";

export const load: PageServerLoad = () => ({ greeting: "Hello from SvelteKit" });
