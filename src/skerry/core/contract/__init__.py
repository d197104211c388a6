"""The contract every provider fulfils, and the byte channel it opens."""
