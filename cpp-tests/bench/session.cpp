// Costs and savings of a session in a host of a real model's size: a section per claim, each with its figure.
//
//   mnnkv_bench_session [memory] [waits] [bookkeeping] [speed]     none named = all
//
// Exit code 1 when a claim does not hold.

#include "session/report.hpp"

int main(int argc, char** argv) {
    using namespace bench;
    struct Section {
        const char* name;
        void (*run)(const Content&, Report&);
    };
    const Section sections[] = {{"memory", memory}, {"waits", waits}, {"bookkeeping", bookkeeping}, {"speed", speed}};
    for (int i = 1; i < argc; ++i) {
        if (std::none_of(std::begin(sections), std::end(sections),
                         [&](const Section& s) { return std::strcmp(s.name, argv[i]) == 0; })) {
            std::fprintf(stderr, "usage: mnnkv_bench_session [memory] [waits] [bookkeeping] [speed]\n");
            return 2;
        }
    }
    Content content;
    if (!content.load()) {
        return 1;
    }
    Report report;
    std::printf("mnn-kv %u, SIMD level %s\n", mnnkv_version(), mnnkv_cpu_level());
    for (const Section& section : sections) {
        const char* name = section.name;
        if (argc == 1 || std::any_of(argv + 1, argv + argc, [&](const char* a) { return std::strcmp(a, name) == 0; })) {
            const double start = seconds();
            std::printf("\n%s\n", name);
            section.run(content, report);
            std::printf("  (%.0f s)\n", seconds() - start);
        }
    }
    std::printf("\n%d claims fail\n", report.failed());
    return report.failed() == 0 ? 0 : 1;
}
