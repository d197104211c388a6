import type { NextConfig } from "next";

const config: NextConfig = {
  // The page is seen through a forwarded port under other names than localhost.
  allowedDevOrigins: ["127.0.0.1", "*.localhost"],
};

export default config;
