/* SHA-256 (FIPS 180-4). */
#ifndef SHA256_H
#define SHA256_H

#include <stddef.h>
#include <stdint.h>

#define SHA256_SIZE 32

struct sha256 {
    uint32_t state[8];
    uint64_t size;
    uint8_t block[64];
};

void sha256_init(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *data, size_t size);
void sha256_end(struct sha256 *s, uint8_t out[SHA256_SIZE]);

#endif
