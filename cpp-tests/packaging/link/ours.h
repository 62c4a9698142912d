#ifndef MNNKV_LINK_OURS_H
#define MNNKV_LINK_OURS_H

/* Encodes and decodes words by the zstd inside libmnnkv. Returns 1 if they are unchanged. */
int ours_round_trip(void);

#endif
