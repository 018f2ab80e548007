// A simulated day: a thousand users, four tiers, and everything that goes wrong in 24 hours of virtual time.
//
//   oracle_prefix_cache_day [--seed N] [--requests N] [--users N] [--worlds N] [--world N] [--short-memory no]
//                           [--verbose yes] [--twice yes]
//
// Each world is a process of its own (day_world.h): a share of the users and requests, a folder, a store, a model that
// changes. All of it follows from the seed. The last line says what may never be anything but 0, the longest stall, and
// a digest of all results, which is the same each time. Without arguments: a hundredth of the day, and a shorter one
// twice, whose digests must agree. A violation ends the day: exit status 1, and the command that replays it.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <string>

#include "base/log.h"
#include "day_requests.h"
#include "operations.h"

namespace kvtrie::oracle::day {
namespace {

struct Arguments {
  std::uint64_t seed = 20261124, requests = operations_here(1000, 2000, 2000);
  std::size_t users = 1000, worlds = 2;
  std::optional<std::size_t> only;  // this world alone
  bool verbose = false, twice = false, short_memory = true;
};

std::uint64_t seed_of_world(const Arguments& arguments, std::size_t world) {
  return arguments.seed * 1000 + world * 10;
}

std::string time_of_day(double seconds) {
  std::ostringstream out;
  const auto whole = static_cast<std::uint64_t>(seconds);
  out << std::setfill('0') << std::setw(2) << whole / 3600 << ":" << std::setw(2) << whole / 60 % 60 << ":"
      << std::setw(2) << whole % 60;
  return out.str();
}

// Memory that is laid out another way each time, so that nothing follows from where objects lie.
std::vector<std::unique_ptr<char[]>> disturbed_memory(std::uint64_t seed) {
  Random random(seed);
  std::vector<std::unique_ptr<char[]>> blocks;
  for (int i = 0; i < 4000; ++i) blocks.push_back(std::make_unique<char[]>(16 + random.below(900)));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (random.chance(0.5)) blocks[i] = nullptr;
  }
  return blocks;
}

// Plays one world. Its report, and what went wrong: empty where nothing did.
std::pair<Report, std::string> play(const Arguments& arguments, std::size_t world, std::uint64_t disturbance) {
  set_log_sink([](LogLevel, const std::string&) {});
  const auto disturbed = disturbed_memory(disturbance);
  const std::uint64_t requests =
      arguments.requests / arguments.worlds + (world < arguments.requests % arguments.worlds);
  Day day({seed_of_world(arguments, world), requests, arguments.users / arguments.worlds, arguments.verbose,
           arguments.short_memory});
  const auto failed = [&](const char* promise, const std::string& what) {
    std::ostringstream out;
    out << promise << " in world " << world << ", seed " << arguments.seed << ", at " << time_of_day(day.now())
        << ", request " << day.request_number() << " of " << requests << " (" << day.doing << ", " << day.model_name()
        << "): " << what << "\nreplay: build/release/tests/cpp/oracle_prefix_cache_day --seed " << arguments.seed
        << " --requests " << arguments.requests << " --users " << arguments.users << " --worlds " << arguments.worlds
        << (arguments.short_memory ? "" : " --short-memory no") << " --world " << world << " --verbose yes\n";
    return out.str();
  };
  static constexpr const char* kNames[] = {"wrong bytes", "lost promise", "leak"};
  try {
    day.run();
    return {day.report, ""};
  } catch (const Violation& violation) {
    testing::allocations_until_failure() = 0;
    ++day.report.broken[static_cast<std::size_t>(violation.promise)];
    return {day.report, failed(kNames[static_cast<std::size_t>(violation.promise)], violation.what)};
  } catch (const std::exception& error) {
    testing::allocations_until_failure() = 0;
    ++day.report.broken[1];
    return {day.report, failed(kNames[1], error.what())};
  }
}

// A process that plays a world and tells through a pipe.
class Player {
 public:
  Player(const Arguments& arguments, std::size_t world, std::uint64_t disturbance) : world_(world) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
    std::cout.flush();
    child_ = ::fork();
    if (child_ < 0) throw std::runtime_error("no process");
    if (child_ > 0) {
      ::close(ends[1]);
      from_ = ends[0];
      return;
    }
    ::close(ends[0]);
    const auto [report, failure] = play(arguments, world, disturbance);
    tell(ends[1], &report, sizeof(report));
    tell(ends[1], failure.data(), failure.size());
    ::close(ends[1]);
    std::exit(failure.empty() ? 0 : 1);
  }
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;

  // What it told; what went wrong.
  std::pair<Report, std::string> wait() {
    std::string told;
    char buffer[4096];
    for (ssize_t got = 0; (got = ::read(from_, buffer, sizeof(buffer))) > 0;)
      told.append(buffer, static_cast<std::size_t>(got));
    ::close(from_);
    int status = 0;
    ::waitpid(child_, &status, 0);
    std::pair<Report, std::string> result;
    if (told.size() < sizeof(Report)) {
      result.first.broken[1] = 1;
      result.second = cat("world ", world_, " ended with status ", status, " and told nothing\n");
      return result;
    }
    std::memcpy(&result.first, told.data(), sizeof(Report));
    result.second = told.substr(sizeof(Report));
    if (status != 0 && result.second.empty()) {
      result.first.broken[2] = 1;
      result.second = cat("world ", world_, " ended with status ", status, "\n");
    }
    return result;
  }

 private:
  static void tell(int to, const void* bytes, std::size_t count) {
    const char* at = static_cast<const char*>(bytes);
    while (count > 0) {
      const ssize_t written = ::write(to, at, count);
      if (written <= 0) std::exit(3);
      at += written;
      count -= static_cast<std::size_t>(written);
    }
  }
  std::size_t world_;
  pid_t child_ = -1;
  int from_ = -1;
};

struct Outcome {
  Report sum;
  std::string failures;
};

Outcome play_all(const Arguments& arguments, std::uint64_t disturbance) {
  std::vector<std::unique_ptr<Player>> players;
  for (std::size_t world = 0; world < arguments.worlds; ++world) {
    if (arguments.only.value_or(world) == world)
      players.push_back(std::make_unique<Player>(arguments, world, disturbance));
  }
  Outcome outcome;
  for (const auto& player : players) {
    const auto [report, failure] = player->wait();
    outcome.failures += failure;
    Report& sum = outcome.sum;
    for (std::size_t hour = 0; hour < 24; ++hour) {
      sum.hours[hour].add(report.hours[hour]);
      sum.pool_share[hour] += report.pool_share[hour] / static_cast<double>(players.size());
    }
    for (std::size_t i = 0; i < 3; ++i) sum.broken[i] += report.broken[i];
    sum.requests += report.requests;
    sum.digest = mix(sum.digest, report.digest);
    sum.checks += report.checks;
    sum.audits += report.audits;
    sum.lies += report.lies;
    sum.virtual_seconds = std::max(sum.virtual_seconds, report.virtual_seconds);
    if (report.longest_call > sum.longest_call) {
      sum.longest_call = report.longest_call;
      sum.longest_call_at = report.longest_call_at;
    }
    sum.resident_first += report.resident_first;
    sum.resident_last += report.resident_last;
  }
  return outcome;
}

double percent(std::uint64_t part, std::uint64_t of) {
  return of == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(of);
}

void print_row(const char* name, const Figures& row, double share) {
  std::cout << std::fixed << std::setprecision(1) << std::setw(5) << name << std::setw(9) << row.requests
            << std::setw(11) << row.prompt_tokens << std::setw(8) << percent(row.reused, row.prompt_tokens)
            << std::setw(8) << percent(row.known, row.prompt_tokens) << std::setw(9)
            << percent(row.from_device, row.reused) << std::setw(7) << percent(row.from_host, row.reused)
            << std::setw(7) << percent(row.from_disk, row.reused) << std::setw(7) << percent(row.from_store, row.reused)
            << std::setw(10) << row.computed << std::setw(8) << row.refused << std::setw(6) << row.kills << std::setw(9)
            << row.restarts << std::setw(6) << row.swaps << std::setw(8) << 100 * share << std::setw(8)
            << std::setprecision(2) << row.stall << "\n";
}

void print(const Arguments& arguments, const Outcome& outcome) {
  const Report& sum = outcome.sum;
  Figures all;
  std::cout
      << " hour requests     tokens reused%  known%  device%  host%  disk% store%  computed refused kills restarts"
         " swaps   pool% stall,s\n";
  double share = 0;
  for (std::size_t hour = 0; hour < 24; ++hour) {
    print_row(cat(hour).c_str(), sum.hours[hour], sum.pool_share[hour]);
    all.add(sum.hours[hour]);
    share += sum.pool_share[hour] / 24;
  }
  print_row("all", all, share);
  std::cout << "rows compared " << all.rows << ", paths found again " << all.kept_paths << ", damaged " << all.damaged
            << ", files dropped for room " << all.dropped_for_room << ", wrong answers of the store " << sum.lies
            << ", allocations that failed " << all.no_memory << ", reused less than planned " << all.tiers_left_out
            << ", requests elsewhere " << all.neighbour << " (" << all.from_neighbour << " tokens reused), checks "
            << sum.checks << ", audits " << sum.audits << "\nlongest request " << std::setprecision(3)
            << sum.longest_call << " s of this machine (request " << sum.longest_call_at << "); resident "
            << sum.resident_first / 1048576 << " MiB after the first hour, " << sum.resident_last / 1048576
            << " MiB after the last\n";
  std::cout << "simulated day: seed " << arguments.seed << ", " << sum.requests << " requests, " << arguments.users
            << " users, " << arguments.worlds << " worlds: wrong bytes " << sum.broken[0] << ", lost promises "
            << sum.broken[1] << ", leaked " << sum.broken[2] << ", longest stall " << std::setprecision(2) << all.stall
            << " s, digest " << std::hex << sum.digest << std::dec << std::endl;
}

// The same seed gives the same results, wherever objects lie in memory.
bool plays_the_same_twice(Arguments arguments) {
  const Outcome first = play_all(arguments, 1), second = play_all(arguments, 2);
  std::cout << "twice " << arguments.requests << " requests, seed " << arguments.seed << ": digests " << std::hex
            << first.sum.digest << ", " << second.sum.digest << std::dec << std::endl;
  std::cerr << first.failures << second.failures;
  return first.failures.empty() && second.failures.empty() && first.sum.digest == second.sum.digest;
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--seed") arguments.seed = std::stoull(value);
    if (name == "--requests") arguments.requests = std::stoull(value);
    if (name == "--users") arguments.users = std::stoull(value);
    if (name == "--worlds") arguments.worlds = std::stoull(value);
    if (name == "--world") arguments.only = std::stoull(value);
    if (name == "--verbose") arguments.verbose = value == "yes";
    if (name == "--short-memory") arguments.short_memory = value == "yes";
    if (name == "--twice") arguments.twice = value == "yes";
  }
  return arguments;
}

}  // namespace
}  // namespace kvtrie::oracle::day

int main(int argc, char** argv) {
  using namespace kvtrie::oracle::day;
  Arguments arguments = parse(argc, argv);
  if (arguments.twice) return plays_the_same_twice(arguments) ? 0 : 1;
  const Outcome outcome = play_all(arguments, 0);
  print(arguments, outcome);
  std::cerr << outcome.failures;
  if (!outcome.failures.empty()) return 1;
  if (argc > 1) return 0;
  arguments.requests = kvtrie::oracle::operations_here(300, 600, 600);
  return plays_the_same_twice(arguments) ? 0 : 1;
}
