/* The names by which code of rustc calls ThreadSanitizer, for GCC's runtime, which has them only by their common ones. */

#include <string.h>

void *__tsan_memcpy(void *to, const void *from, size_t len);
void *__tsan_memmove(void *to, const void *from, size_t len);
void *__tsan_memset(void *to, int byte, size_t len);

void *__tsan_memcpy(void *to, const void *from, size_t len) { return memcpy(to, from, len); }
void *__tsan_memmove(void *to, const void *from, size_t len) { return memmove(to, from, len); }
void *__tsan_memset(void *to, int byte, size_t len) { return memset(to, byte, len); }
