/* SPDX-License-Identifier: Apache-2.0
 * hvdrun: starts the ranks of a job on this machine, shows what they print, and ends them together.
 *
 *   flags.def  every option          options.c what the command line says
 *   hosts.c    which machine         config.c  what a configuration file says
 *   plain.c    a job on this machine node.c    a node's ranks, from start to leftovers
 *   start.c    a rank's environment  procs.c   processes and their groups
 *   daemon.c   the private hvdd      guard.c   cleans up if hvdrun is SIGKILLed
 *   end.c      who failed, what next display.c what is shown, output.c: prefixes and lines
 *   spread.c   a job on other hosts  agent.c   hvdrun --node, there
 *   link.c     one agent, from here  channel.c what they say to each other
 *   tree.c     of many hosts, relays relay.c   hvdrun --relay, there
 *   ssh.c      how it is started     words.c   which variables travel
 *   task.c     what a host is told   call.c    what hvd.run brings and takes
 *   route.c    this host's address   build.c   --check-build
 *   lsf.c      hosts that LSF names
 *
 * One thread of our own (libzmq adds its two once the ranks run). Each rank leads a process group;
 * signals from outside are passed on to the groups. Nothing that was started is left when hvdrun
 * returns. */
#include "tools/hvdrun/agent.h"
#include "tools/hvdrun/build.h"
#include "tools/hvdrun/channel.h"
#include "tools/hvdrun/flags.h"
#include "tools/hvdrun/guard.h"
#include "tools/hvdrun/options.h"
#include "tools/hvdrun/plain.h"
#include "tools/hvdrun/relay.h"
#include "tools/hvdrun/self.h"
#include "tools/hvdrun/spread.h"

#include <stdlib.h>
#include <string.h>

/* horovodrun comes from a Python package that says which release of Horovod it stands for. */
static const char *shown_version(const struct run_options *options)
{
    const char *said = options->compat ? getenv("HVDRUN_VERSION") : NULL;
    return said != NULL && said[0] != '\0' ? said : HVD_VERSION_TEXT;
}

/* Nobody who starts hvdrun alone has said which Python counts; the compatible format is for stdout
 * alone. */
static void check_build(const struct run_options *options)
{
    char text[1024];
    struct run_build build;
    if (run_build_ask(&build, text, sizeof text) != 0)
        fprintf(stderr, "hvdrun: %s\n", text);
    else if (getenv("HVDRUN_PYTHON") == NULL)
        fprintf(stderr, "hvdrun: the frameworks are those of %s (HVDRUN_PYTHON names another)\n",
                build.python);
    build.has_nccl = run_build_has_nccl(options->address);
    run_build_print(stdout, options->compat ? "Horovod" : "hvd", shown_version(options), &build);
}

/* What is asked for instead of a launch. */
static bool print_instead(const struct run_options *options)
{
    if (options->help)
        run_flags_help(stdout, run_options_program(options));
    else if (options->help_man)
        run_flags_help_man(stdout);
    else if (options->version)
        printf("%s%s\n", options->compat ? "" : "hvdrun ", shown_version(options));
    else if (options->check_build)
        check_build(options);
    else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    struct run_options options;
    char text[1024];
    run_self_fill_fds();
    run_guard_keep_words(argc, argv);
    if (argc == 2 && strcmp(argv[1], "--node") == 0)
        return run_agent(RUN_SILENCE_NS);
    if (argc == 2 && strcmp(argv[1], "--relay") == 0)
        return run_relay(RUN_SILENCE_NS);
    if (run_options_parse(argc, argv, &options, text, sizeof text) != 0) {
        fprintf(stderr, "hvdrun: %s\nTry hvdrun --help.\n", text);
        return 2;
    }
    int code = 0;
    if (!print_instead(&options)) {
        run_options_tell_idle(&options, stderr);
        code = run_hosts_are_spread(&options.places) ? run_spread(&options) : run_plain(&options);
    }
    run_options_fini(&options);
    return fflush(stdout) == 0 ? code : 1;
}
