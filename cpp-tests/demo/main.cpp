// mnn-kv in a small host: host.hpp has the three calls that an engine makes per layer, this file the configs and the
// table. Decodes the end of a long chat once without mnn-kv, and once with each config; one chat is saved and opened again.
//
//   mnnkv_demo [tokens]
//
// Writes a picture to mnnkv_demo.svg in the working folder.

#include "host.hpp"
#include "picture.hpp"

namespace demo {

struct Run {
    std::string name, config;  // JSON; "": no mnn-kv
    bool evicts, drops, exact;  // h2o; tokens are lost; outputs are to the bit those without mnn-kv
};

/// The runs that the picture has, the first ones; and the one with a file, whose chat is saved.
const std::size_t drawn_runs = 4, saved_run = 3;

/// The file of a budget, in the working folder while its row runs.
#define BLOCKS "mnnkv_demo.blocks"

/// The budget is less than the chat takes in 8 and 4 bits.
std::vector<Run> runs_of(double bytes) {
    const std::string budget = "\"kv_memory_mb\": " + number("%.0f", bytes * 0.24 / 1e6);
    return {
        {"without mnn-kv", "", false, false, true},
        {"\"kv_quant\": \"k8v4\"", "{\"kv_quant\": \"k8v4\"}", false, false, false},
        {budget, "{" + budget + "}", false, true, false},
        {budget + " with a file", "{" + budget + ", \"kv_memory_file\": \"" BLOCKS "\"}", false, false, false},
        // The reference's modes.
        {"h2o, one token in 3.5",
         "{\"kv_h2o_enable\": true, \"kv_h2o_target_lossy_ratio\": 3.5, "
         "\"kv_h2o_block_tokens\": 32, \"kv_h2o_sink_tokens\": 16, \"kv_h2o_recent_tokens\": 96, "
         "\"kv_h2o_update_interval\": 16, \"kv_h2o_layer_start\": 2}",
         true, true, false},
        {"store",
         "{\"kv_lossless_enable\": true, \"kv_lossless_runtime_enable\": true, "
         "\"kv_lossless_runtime_mode\": \"store\", \"kv_lossless_scope\": \"front_n\", \"kv_lossless_front_n\": 8, "
         "\"kv_lossless_hot_sink_tokens\": 16, \"kv_lossless_hot_recent_tokens\": 96, \"kv_lossless_async_threads\": 1}",
         false, false, true},
    };
}

struct Result {
    double end_mb, most_mb;  // resident bytes of the caches and all that mnn-kv needs, by the system
    double median_ms, slowest_ms;
    double lost, in_file;        // tokens, mean of all layers and heads
    std::vector<float> outputs;  // of the last steps: [step][layer][query head][dim]
    std::string outlook;
    std::vector<Point> points;
};

/// How long a chat takes to be saved, and opened again with its first step.
struct Saved {
    double save_ms, written_mb, open_ms, step_ms;
    bool is_same;  // the first step has the outputs of the chat that went on, to the bit
};

double ms_since(double start) { return (seconds() - start) * 1e3; }

/// is_drawn: steps of the prompt are timed. saved: where not null, the chat is saved before its last step.
Result measure(const Run& run, const Chat& chat, bool is_drawn, Saved* saved) {
    Result result = {};
    result.outputs.reserve(std::size_t(Chat::compared) * Chat::layers * Chat::query_heads * Chat::dims);
    std::vector<double> times;
    times.reserve(chat.steps);
    trim_heap();
    const double empty = double(resident_bytes());
    const auto look = [&] {
        result.end_mb = (double(resident_bytes()) - empty) / 1e6;
        result.most_mb = std::max(result.most_mb, result.end_mb);
    };
    Host host(chat, run.config, run.evicts);
    host.prompt(is_drawn ? 4 : 0, look, [&](double tokens, double step) {
        look();
        result.points.push_back({tokens, result.end_mb, step * 1e3});
    });
    for (std::uint32_t step = 0; step < chat.steps; ++step) {
        if (saved != nullptr && step + 1 == chat.steps) {
            const double start = seconds();
            saved->written_mb = double(host.save()) / 1e6;
            saved->save_ms = ms_since(start);
        }
        const double start = seconds();
        host.step(step, [&](const std::vector<float>& out) {
            if (step >= chat.steps - Chat::compared) {
                result.outputs.insert(result.outputs.end(), out.begin(), out.end());
            }
        });
        if (step >= chat.steps / 4) {  // what is evicted after the prompt is gone then
            times.push_back(seconds() - start);
        }
        look();
    }
    std::sort(times.begin(), times.end());
    result.median_ms = times[times.size() / 2] * 1e3;
    result.slowest_ms = times.back() * 1e3;
    const std::string report = host.session().report(), memory = mnnkv_host::json_member(report, "memory");
    const double evicted = mnnkv_host::json_number_of(report, "h2o_total_evict_tokens");
    result.lost = (mnnkv_host::json_number_of(memory, "dropped_tokens") + evicted) / Chat::layers;
    result.in_file = mnnkv_host::json_number_of(memory, "file_tokens") / Chat::layers;
    (void)mnnkv_host::json_text(mnnkv_host::json_member(report, "does"), result.outlook);
    return result;
}

/// Goes on with a chat that was saved before its last step. outputs: those of the chat that took this step.
void reopen(const Run& run, const Chat& chat, const std::vector<float>& outputs, Saved& saved) {
    const double start = seconds();
    Host host(chat, run.config, run.evicts);
    host.open();
    saved.open_ms = ms_since(start);
    std::vector<float> last;
    const double begun = seconds();
    host.step(chat.steps - 1, [&](const std::vector<float>& out) { last.insert(last.end(), out.begin(), out.end()); });
    saved.step_ms = ms_since(begun);
    saved.is_same = std::equal(last.rbegin(), last.rend(), outputs.rbegin());
}

/// Of outputs against those in f64: relative, the root of the mean square.
double error_of(const std::vector<float>& outputs, const std::vector<double>& reference) {
    double differences = 0, squares = 0;
    for (std::size_t i = 0; i < reference.size(); ++i) {
        const double difference = double(outputs[i]) - reference[i];
        differences += difference * difference;
        squares += reference[i] * reference[i];
    }
    return std::sqrt(differences / squares);
}

/// False, with a line, where a run is not what its config promises.
bool is_sound(const Run& run, const Result& r, double error, const Result& without) {
    const char* wrong = nullptr;
    if ((r.lost > 0) != run.drops) {
        wrong = run.drops ? "no token is lost" : "tokens are lost";
    } else if (run.exact && r.outputs != without.outputs) {
        wrong = "attention is not to the bit that without mnn-kv";
    } else if (!(error < (run.exact ? 1e-5 : run.drops ? 1.5 : 0.3))) {
        wrong = "the error of attention is too large";
    }
    if (wrong != nullptr) {
        std::printf("%s: %s; this must not be\n", run.name.c_str(), wrong);
    }
    return wrong == nullptr;
}

int compare_runs(const Chat& chat) {
    std::printf("A chat of %u tokens, the last %u step by step: %u layers, %u KV heads x %u, f16, %.1f MB of K and V.\n",
                chat.tokens, chat.steps, Chat::layers, Chat::heads, Chat::dims, chat.bytes() / 1e6);
    std::fprintf(stderr, "attention in f64, to compare with\n");
    const std::vector<double> reference = chat.reference();
    Table table("demo", number("%.0f", chat.tokens) + " tokens, one thread",
                {"run", "MB at the end", "MB at most", "ms a step", "slowest", "error", "tokens lost",
                 "only in the file"});
    std::vector<Result> results;
    bool sound = true;
    const std::vector<Run> runs = runs_of(chat.bytes());
    std::vector<Picture::Line> lines;
    Saved reopened = {};
    std::remove(BLOCKS);
    for (const Run& run : runs) {
        const std::size_t at = results.size();
        std::fprintf(stderr, "run %zu of %zu: %s\n", at + 1, runs.size(), run.name.c_str());
        results.push_back(measure(run, chat, at < drawn_runs, at == saved_run ? &reopened : nullptr));
        const Result& r = results.back();
        if (at < drawn_runs) {
            lines.push_back({run.name, r.points});
        }
        if (at == saved_run) {
            reopen(run, chat, r.outputs, reopened);
            sound = reopened.is_same && sound;
        }
        const double error = error_of(r.outputs, reference);
        table.row({run.name, number("%.1f", r.end_mb), number("%.1f", r.most_mb), number("%.1f", r.median_ms),
                   number("%.1f", r.slowest_ms), number(error < 1e-3 ? "%.5f %%" : "%.1f %%", 100 * error),
                   number("%.0f", r.lost), number("%.0f", r.in_file)});
        sound = is_sound(run, r, error, results[0]) && sound;
    }
    std::remove(BLOCKS);
    table.print();
    std::printf("\nThe chat with a file was saved in %.0f ms (%.1f MB written). Another session opened it in %.0f ms; its first step took\n"
                "%.0f ms, and its outputs are %s those of the chat that had gone on.\n\n",
                reopened.save_ms, reopened.written_mb, reopened.open_ms, reopened.step_ms,
                reopened.is_same ? "to the bit" : "(this must not be) not");
    for (std::size_t i = 1; i < runs.size(); ++i) {
        std::printf("%s: %s\n", runs[i].name.c_str(), results[i].outlook.c_str());
    }
    std::printf(
        "\nMB: private memory of the caches and of mnn-kv, by the system; the file is not in it. At most: after each layer of\n"
        "a chunk of the prompt, of 256 tokens, and after each step. ms a step: the median and the slowest of the last %u\n"
        "steps, attention and mnn-kv alone, without a model's matrix products. Without mnn-kv, and with h2o and store,\n"
        "attention is the demo's own plain loop, not MNN's kernels: a ratio of two times says nothing of an engine. README.md\n"
        "has the speed of MNN. error: of the outputs of attention in the last %u steps, against attention in f64 over all\n"
        "tokens; relative, the root of the mean square. In these steps every other query head reads a passage, somewhere in\n"
        "the chat, that no step has read before. tokens lost: no step can attend to them again; mean of layers and heads.\n",
        chat.steps - chat.steps / 4, Chat::compared);
    const char* const picture = "mnnkv_demo.svg";
    const bool is_drawn = Picture(lines, chat.tokens).write(picture);
    std::printf("\nMemory and time of a step over the chat: %s%s\n", picture, is_drawn ? "" : " could not be written");
    std::printf("\nNext: MNN takes a patch, integrations/mnn/README.md. Your own engine takes an hour, docs/adopt.md. What a model would\n"
                "save and lose: mnnkv size and mnnkv quality, docs/tools.md.\n");
    return sound && is_drawn ? 0 : 1;
}

}  // namespace demo

int main(int argc, char** argv) {
    using namespace demo;
    const long tokens = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 8192;
    if (argc > 2 || tokens < 2048 || tokens > 32768 || tokens % 1024 != 0) {
        std::fprintf(stderr, "usage: mnnkv_demo [tokens: 2048 to 32768, a multiple of 1024]\n");
        return 2;
    }
    Sample sample;
    return sample.load(MNNKV_SAMPLE_DIR) ? compare_runs(Chat(sample, static_cast<std::uint32_t>(tokens))) : 1;
}
