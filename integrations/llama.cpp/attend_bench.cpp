// Steps of a decode with and without the backend of ggml-mnnkv.cpp, in turn, in one process.
//
//   attend_bench MODEL.gguf libggml-mnnkv.so TYPE_K TYPE_V DEPTH THREADS [SEQUENCES]
//
// DEPTH tokens are those of all sequences together, which share one cache; a step is a token of each.
// A context of before the backend was loaded has none of it. With one thread the time is that of the CPU, which other programs
// disturb less. README.md has the line that builds it.

#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

namespace {

constexpr int steps = 8, rounds = 8;

ggml_type type_of(const std::string & name) {
    return name == "q8_0" ? GGML_TYPE_Q8_0 : name == "q4_0" ? GGML_TYPE_Q4_0 : GGML_TYPE_F16;
}

/// Decodes tokens that follow those of a sequence; of a step, one token of each sequence.
bool decode(llama_context * context, const llama_token * tokens, int count, llama_pos position, llama_seq_id first, bool step) {
    llama_batch batch = llama_batch_init(count, 0, 1);
    batch.n_tokens = count;
    for (int i = 0; i < count; i++) {
        batch.token[i] = tokens[i];
        batch.pos[i] = position + (step ? 0 : i);
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = first + (step ? i : 0);
        batch.logits[i] = step || i + 1 == count;
    }
    const bool decoded = llama_decode(context, batch) == 0;
    llama_synchronize(context);
    llama_batch_free(batch);
    return decoded;
}

double milliseconds(clockid_t clock) {
    timespec now;
    clock_gettime(clock, &now);
    return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

}  // namespace

int main(int count, char ** arguments) {
    if (count != 7 && count != 8) {
        std::fprintf(stderr, "usage: attend_bench MODEL.gguf BACKEND TYPE_K TYPE_V DEPTH THREADS [SEQUENCES]\n");
        return 2;
    }
    const int sequences = count == 8 ? std::atoi(arguments[7]) : 1;
    const int depth = std::atoi(arguments[5]) / sequences, threads = std::atoi(arguments[6]);
    const clockid_t clock = threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    ggml_backend_load_all();
    llama_model * model = llama_model_load_from_file(arguments[1], llama_model_default_params());
    if (model == nullptr) {
        return 1;
    }
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<uint32_t>(sequences * (depth + steps + 8));
    params.n_seq_max = static_cast<uint32_t>(sequences);
    params.kv_unified = true;
    params.n_threads = params.n_threads_batch = threads;
    params.type_k = type_of(arguments[3]);
    params.type_v = type_of(arguments[4]);
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    llama_context * contexts[2] = {llama_init_from_model(model, params), nullptr};
    if (ggml_backend_load(arguments[2]) == nullptr) {
        return 1;
    }
    contexts[1] = llama_init_from_model(model, params);

    std::vector<llama_token> tokens(static_cast<size_t>(sequences * (depth + steps)));
    std::srand(1);
    std::generate(tokens.begin(), tokens.end(), [] { return 100 + std::rand() % 40000; });
    for (int sequence = 0; sequence < sequences; sequence++) {
        for (int at = 0; at < depth; at += 512) {
            if (!decode(contexts[0], &tokens[static_cast<size_t>(sequence * depth + at)], std::min(512, depth - at), at, sequence, false)) {
                return 1;
            }
        }
        std::vector<uint8_t> state(llama_state_seq_get_size(contexts[0], sequence));
        llama_state_seq_get_data(contexts[0], state.data(), state.size(), sequence);
        llama_state_seq_set_data(contexts[1], state.data(), state.size(), sequence);
    }

    std::vector<double> times[2];
    for (int round = 0; round <= rounds; round++) {
        for (int turn = 0; turn < 2; turn++) {
            const int which = (round + turn) % 2;
            for (int step = 0; step < steps; step++) {
                const double begin = milliseconds(clock);
                const size_t at = static_cast<size_t>(sequences * (depth + step));
                if (!decode(contexts[which], &tokens[at], sequences, depth + step, 0, true)) {
                    return 1;
                }
                if (round > 0) {  // the first warms up
                    times[which].push_back(milliseconds(clock) - begin);
                }
            }
            llama_memory_seq_rm(llama_get_memory(contexts[which]), -1, depth, -1);
        }
    }
    for (std::vector<double> & each : times) {
        std::sort(each.begin(), each.end());
    }
    const double without = times[0][times[0].size() / 2], with = times[1][times[1].size() / 2];
    std::printf("without %.2f ms, with %.2f ms: %.2f times\n", without, with, without / with);
    llama_free(contexts[0]);
    llama_free(contexts[1]);
    llama_model_free(model);
}
