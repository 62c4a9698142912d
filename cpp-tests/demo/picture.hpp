// The demo's picture: lines over the length of the chat, side by side, as SVG.

#ifndef MNNKV_DEMO_PICTURE_HPP
#define MNNKV_DEMO_PICTURE_HPP

#include "table.hpp"

namespace demo {

/// What a run takes at a length of the chat.
struct Point {
    double tokens, mb, ms;
};

class Picture {
public:
    struct Line {
        std::string name;
        std::vector<Point> points;
    };

    /// tokens: of the whole chat.
    Picture(std::vector<Line> lines, double tokens) : lines_(std::move(lines)), longest_(tokens) {}

    /// False where the file cannot be written.
    bool write(const char* path) const {
        std::string svg =
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 860 300\" font-family=\"sans-serif\" font-size=\"13\">\n"
            "<rect width=\"860\" height=\"300\" fill=\"white\"/>\n";
        panel(svg, 50, "MB of K, V and mnn-kv", &Point::mb);
        panel(svg, 490, "ms a step (8 layers, attention alone)", &Point::ms);
        double x = 50;
        for (std::size_t i = 0; i < lines_.size(); ++i) {
            svg += "<path d=\"M" + at(x, 285) + "h24\" stroke=\"" + color(i) + "\" stroke-width=\"3\"/>" +
                   text(x + 30, 289, "start", lines_[i].name);
            x += 60 + 7 * double(lines_[i].name.size());
        }
        svg += "</svg>\n";
        std::FILE* file = std::fopen(path, "w");
        const bool is_written = file != nullptr && std::fputs(svg.c_str(), file) >= 0;
        return (file == nullptr || std::fclose(file) == 0) && is_written;
    }

private:
    static constexpr double width = 340, top = 40, bottom = 230;

    void panel(std::string& svg, double left, const char* title, double Point::*of) const {
        double most = 0;
        for (const Line& line : lines_) {
            for (const Point& point : line.points) {
                most = std::max(most, point.*of);
            }
        }
        const double step = tick(most);
        const double end = step * std::ceil(most / step);
        const auto x = [&](double tokens) { return left + width * tokens / longest_; };
        const auto y = [&](double value) { return bottom - (bottom - top) * value / end; };
        svg += text(left, 22, "start", title);
        for (int i = 0; step * i <= end * 1.001; ++i) {
            svg += "<path d=\"M" + at(left, y(step * i)) + "h" + number("%.0f", width) + "\" stroke=\"#ddd\"/>" +
                   text(left - 6, y(step * i) + 4, "end", number("%g", step * i));
        }
        for (int i = 0; i <= 4; ++i) {
            svg += text(x(longest_ * i / 4), bottom + 18, "middle", number("%.0f", longest_ * i / 4));
        }
        svg += text(left + width / 2, bottom + 36, "middle", "tokens of the chat");
        for (std::size_t i = 0; i < lines_.size(); ++i) {
            std::string path;
            for (const Point& point : lines_[i].points) {
                path += (path.empty() ? "M" : "L") + at(x(point.tokens), y(point.*of));
            }
            svg += "<path d=\"" + path + "\" fill=\"none\" stroke=\"" + color(i) + "\" stroke-width=\"2\"/>\n";
        }
    }

    /// The distance of about five ticks: 1, 2 or 5 times a power of ten.
    static double tick(double most) {
        const double power = std::pow(10, std::floor(std::log10(std::max(most, 1e-9) / 5)));
        const double parts = most / 5 / power;
        return power * (parts <= 1 ? 1 : parts <= 2 ? 2 : parts <= 5 ? 5 : 10);
    }

    static std::string at(double x, double y) { return number("%.1f", x) + " " + number("%.1f", y); }

    static std::string text(double x, double y, const char* anchor, const std::string& words) {
        std::string escaped;
        for (const char c : words) {
            escaped += c == '"' ? "&quot;" : std::string(1, c);
        }
        return "<text x=\"" + number("%.1f", x) + "\" y=\"" + number("%.1f", y) + "\" text-anchor=\"" + anchor +
               "\">" + escaped + "</text>\n";
    }

    static const char* color(std::size_t line) {
        static const char* const colors[] = {"#888888", "#0072b2", "#d55e00", "#009e73"};
        return colors[line % 4];
    }

    std::vector<Line> lines_;
    double longest_;
};

}  // namespace demo

#endif
