// mnn-kv for llama.cpp: sequences saved to compressed blobs and restored, over the public functions of llama.h.
//
// C++11, needs neither exceptions nor RTTI. No file of llama.cpp is changed. README.md shows where a server calls these.

#ifndef MNNKV_LLAMA_HPP
#define MNNKV_LLAMA_HPP

#include "llama.h"
#include "mnnkv_llama_layout.hpp"

namespace mnnkv_llama {

/// Bytes of a saved sequence before compression, and whether K and V were found.
struct saved {
    std::size_t raw_bytes = 0;
    layout found;
};

/// The functions of llama.h with flags, or without them in a version that has none.
struct state_functions {
#ifdef LLAMA_STATE_SEQ_FLAGS_SWA_ONLY
    static std::size_t size(llama_context* context, llama_seq_id sequence, std::uint32_t flags) {
        return llama_state_seq_get_size_ext(context, sequence, flags);
    }
    static std::size_t get(llama_context* context, unsigned char* to, std::size_t size, llama_seq_id sequence,
                           std::uint32_t flags) {
        return llama_state_seq_get_data_ext(context, to, size, sequence, flags);
    }
    static std::size_t set(llama_context* context, const unsigned char* from, std::size_t size, llama_seq_id sequence,
                           std::uint32_t flags) {
        return llama_state_seq_set_data_ext(context, from, size, sequence, flags);
    }
#else
    static std::size_t size(llama_context* context, llama_seq_id sequence, std::uint32_t) {
        return llama_state_seq_get_size(context, sequence);
    }
    static std::size_t get(llama_context* context, unsigned char* to, std::size_t size, llama_seq_id sequence,
                           std::uint32_t) {
        return llama_state_seq_get_data(context, to, size, sequence);
    }
    static std::size_t set(llama_context* context, const unsigned char* from, std::size_t size, llama_seq_id sequence,
                           std::uint32_t) {
        return llama_state_seq_set_data(context, from, size, sequence);
    }
#endif
};

/// Saves a sequence to `blob`, which is unchanged after a failure. The sequence stays in the context.
/// flags: LLAMA_STATE_SEQ_FLAGS_*, ignored by versions without them.
/// threads: the calling one included; 0 = as many as cores.
/// NOT_FOUND: if llama.cpp returns no state
/// UNSUPPORTED: if a flag leaves the state on a device
inline status save(llama_context* context, llama_seq_id sequence, buffer& blob,
                          std::uint32_t flags = 0, std::uint32_t threads = 0, saved* report = nullptr) {
#ifdef LLAMA_STATE_SEQ_FLAGS_ON_DEVICE
    if ((flags & LLAMA_STATE_SEQ_FLAGS_ON_DEVICE) != 0) {
        return status(MNNKV_UNSUPPORTED, "the flags leave the state on a device");
    }
#endif
    const std::size_t size = state_functions::size(context, sequence, flags);
    buffer raw(size);
    if (!raw) {
        return status(MNNKV_OUT_OF_MEMORY, "out of memory");
    }
    const std::size_t len = state_functions::get(context, raw.data(), size, sequence, flags);
    if (len == 0 || len > size) {
        return status(MNNKV_NOT_FOUND, "llama.cpp returned no state");
    }
    if (report != nullptr) {
        report->raw_bytes = len;
    }
    return compress(raw.data(), len, threads, blob, report != nullptr ? &report->found : nullptr);
}

/// Restores a sequence of `save` with the same flags in a context of the same model and parameters, under any id. Tokens
/// that the sequence had are gone, also after a failure of llama.cpp.
/// max_size: the largest state that is accepted before compression; for blobs from elsewhere.
/// STALE: if llama.cpp refuses the state: another model, another cache type, or a cache without room
inline status restore(llama_context* context, llama_seq_id sequence, const void* blob, std::size_t blob_size,
                             std::uint32_t flags = 0, std::size_t max_size = SIZE_MAX) {
    buffer raw;
    const status decoded = decompress(blob, blob_size, max_size, raw);
    if (!decoded) {
        return decoded;
    }
    const bool is_set = state_functions::set(context, raw.data(), raw.size(), sequence, flags) == raw.size();
    return status(is_set ? MNNKV_OK : MNNKV_STALE,
                  "llama.cpp refused the state: another model or type of cache, or no room");
}

}  // namespace mnnkv_llama

#endif  // MNNKV_LLAMA_HPP
