// Costs and savings of a session in a host of a real model's size: a section per claim, each with its figure.
//
//   mnnkv_bench_session [memory] [waits]     none named = all
//
// Exit code 1 when bytes differ. A figure that misses its claim is RED in the table, and no failure.

#include "session/report.hpp"

int main(int argc, char** argv) {
    using namespace bench;
    struct Section {
        const char* name;
        void (*run)(const Content&, Report&);
    };
    const Section sections[] = {{"memory", memory}, {"waits", waits}};
    for (int i = 1; i < argc; ++i) {
        if (std::none_of(std::begin(sections), std::end(sections),
                         [&](const Section& s) { return std::strcmp(s.name, argv[i]) == 0; })) {
            std::fprintf(stderr, "usage: mnnkv_bench_session [memory] [waits]\n");
            return 2;
        }
    }
    Content content;
    if (!content.load()) {
        return 1;
    }
    for (const Section& section : sections) {
        const char* name = section.name;
        if (argc == 1 || std::any_of(argv + 1, argv + argc, [&](const char* a) { return std::strcmp(a, name) == 0; })) {
            Report report(name);
            section.run(content, report);
            report.print();
        }
    }
    return 0;
}
