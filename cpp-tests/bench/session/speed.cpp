// Decode speed with h2o at 3.5 beside the same host without: attention only, since a model's matrix products take the
// same time in both. 4 layers, 32 query heads, 8 KV heads x 128, f16; one thread.

#include "decoder.hpp"

namespace bench {
namespace {

const std::uint32_t layers = 4;
const std::uint32_t steps = 128;

/// Seconds of each step: begin, append, attention with scores, end.
std::vector<double> run(const Content& content, std::uint32_t tokens, const std::string& config) {
    Caches caches(content, layers, tokens + steps);
    Session session(config, layers);
    Decoder decoder;
    for (std::uint32_t l = 0; l < layers; ++l) {
        session.begin(l, caches[l]);
        caches.append(l, tokens);
        session.end(l, caches[l], Decoder::query_heads, tokens);
    }
    std::vector<double> times;
    for (std::uint32_t step = 0; step < steps; ++step) {
        const double start = seconds();
        for (std::uint32_t l = 0; l < layers; ++l) {
            session.begin(l, caches[l]);
            caches.append(l, 1);
            session.on() ? decoder.attend(caches[l], session, l) : decoder.attend_only(caches[l]);
            session.end(l, caches[l], Decoder::query_heads, 1);
        }
        times.push_back(seconds() - start);
    }
    return times;
}

double mean(const std::vector<double>& values) {
    double sum = 0;
    for (double value : values) {
        sum += value;
    }
    return sum / double(values.size());
}

}  // namespace

void speed(const Content& content, Report& report) {
    Table table("speed", "one thread, attention alone, 4 layers",
                {"tokens", "ms a step", "median", "with h2o at 3.5:1", "median", "longest", "times as many steps"});
    for (std::uint32_t tokens : {1024u, 4096u}) {
        const std::vector<double> base = run(content, tokens, "");
        const std::vector<double> h2o = run(content, tokens, "{" + h2o_config() + "}");
        const auto ms = [](double time) { return number("%.2f", time * 1e3); };
        table.row({std::to_string(tokens), ms(mean(base)), ms(quantile(base, 0.5)), ms(mean(h2o)),
                   ms(quantile(h2o, 0.5)), ms(quantile(h2o, 1)), number("%.2f", mean(base) / mean(h2o))});
        const double times = quantile(base, 0.5) / quantile(h2o, 0.5);
        report.claim(times > 1, std::to_string(tokens) + " tokens: h2o decodes faster, by medians", times, "x");
    }
    table.print();
}

}  // namespace bench
