"""The benchmark: Skerry beside a plain process, and beside Docker on the same machine."""
