#ifndef MNNKV_LINK_OURS_H
#define MNNKV_LINK_OURS_H

/* Words through the codec and back, by way of the zstd inside libmnnkv. 1 when they came back as they were. */
int ours_round_trip(void);

#endif
