declare global {
  namespace App {
    // interface Locals {}
    // interface PageData {}
  }
}

export {};
