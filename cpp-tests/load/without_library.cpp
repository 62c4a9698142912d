// The adapter for MNN in a program that is built without the library, where there is none: MNN is unchanged, and a line says
// why. Compiled as MNN is.

#include <cstdio>
#include <string>

#include "stub_host.hpp"

namespace {

/// The outputs of a chat, and whether its engine says in each place that mnn-kv is off.
std::vector<float> attended(const std::string& config, bool patched, bool& is_off) {
    mnn_stub::settings how;
    how.config = config;
    how.patched = patched;
    mnn_stub::engine engine(how);
    std::vector<float> all;
    int position = 0;
    for (const int count : {70, 1, 1, 90, 1}) {
        std::vector<mnn_stub::token> tokens;
        for (int i = 0; i < count; ++i, ++position) {
            tokens.push_back({position, position});
        }
        for (const mnn_stub::layer_step& step : engine.forward(tokens)) {
            all.insert(all.end(), step.output.begin(), step.output.end());
        }
    }
    is_off = engine.metrics().find("\"off\":\"its library is not loaded: ") != std::string::npos && engine.chunk_of(9000, 0) == 0 &&
             !engine.command(R"({"kv_trim_mb": 1})");
    return all;
}

}  // namespace

int main() {
    const std::string config = R"({"kv_memory_mb": 64, "kv_library": "/nowhere/libmnnkv.so"})";
    bool is_plain_off = false, is_off = false;
    const std::vector<float> plain = attended("{}", false, is_plain_off), without = attended(config, true, is_off);
    const std::vector<std::string> log = mnn_stub::take_log();
    mnn_stub::settings strict;
    strict.config = R"({"kv_memory_mb": 64, "kv_required": true, "kv_library": "/nowhere/libmnnkv.so"})";
    const std::vector<mnn_stub::layer_step> failed = mnn_stub::engine(strict).forward({{0, 0}});
    for (const std::string& line : log) {
        std::printf("%s\n", line.c_str());
    }
    const std::string line = "mnn-kv: off where its library is not loaded: /nowhere/libmnnkv.so";
    const bool names_remedy = !log.empty() && log[0].find("MNNKV_LIBRARY") != std::string::npos;
    const bool fails = !failed.empty() && failed[0].error == 2;  // MNN's NOT_SUPPORT
    return fails && !plain.empty() && plain == without && is_off && names_remedy && log.size() == 2 && log[0].find(line) == 0 ? 0 : 1;
}
