// A stand-in for llama.h: the functions that the adapter calls, over sequences that are byte strings.

#ifndef MNNKV_TESTS_LLAMA_H
#define MNNKV_TESTS_LLAMA_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

typedef std::int32_t llama_seq_id;
typedef std::uint32_t llama_state_seq_flags;
#define LLAMA_STATE_SEQ_FLAGS_SWA_ONLY 1

struct llama_context {
    /// By id and flags.
    std::map<std::pair<llama_seq_id, llama_state_seq_flags>, std::vector<std::uint8_t>> sequences;
    bool refuses = false;
};

inline std::size_t llama_state_seq_get_size_ext(llama_context* context, llama_seq_id id, llama_state_seq_flags flags) {
    return context->sequences[std::make_pair(id, flags)].size();
}

inline std::size_t llama_state_seq_get_data_ext(llama_context* context, std::uint8_t* to, std::size_t size,
                                                llama_seq_id id, llama_state_seq_flags flags) {
    const std::vector<std::uint8_t>& sequence = context->sequences[std::make_pair(id, flags)];
    if (size < sequence.size() || sequence.empty()) {
        return 0;
    }
    std::memcpy(to, sequence.data(), sequence.size());
    return sequence.size();
}

inline std::size_t llama_state_seq_set_data_ext(llama_context* context, const std::uint8_t* from, std::size_t size,
                                                llama_seq_id id, llama_state_seq_flags flags) {
    if (context->refuses) {
        return 0;
    }
    context->sequences[std::make_pair(id, flags)].assign(from, from + size);
    return size;
}

#endif  // MNNKV_TESTS_LLAMA_H
