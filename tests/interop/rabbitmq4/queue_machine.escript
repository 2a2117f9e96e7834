#!/usr/bin/env escript
-mode(compile).
%% Runs programs on the server's own queue machine (`rabbit_fifo`).
%%   queue_machine.escript PROGRAMS RESULTS
%% PROGRAMS is a list of {Config, [{Index, Time, Command}]}; the command {version, To} converts the state, as a new leader does.
%% RESULTS is a list of {Version, State, [{Index, Version, Snapshot, State}]}; states are binaries, and the last one is that
%% after the snapshot and the commands behind it.

main([In, Out]) ->
    {ok, Bin} = file:read_file(In),
    Results = [program(P) || P <- binary_to_term(Bin)],
    ok = file:write_file(Out, term_to_binary(Results)).

program({Config, Commands}) ->
    {Version, State, Snapshots, _} =
        lists:foldl(fun step/2, {0, rabbit_fifo_v0:init(Config), [], [{0, 0}]}, Commands),
    {Version, term_to_binary(State), [from(Snapshot, Commands) || Snapshot <- lists:sublist(Snapshots, 3)]}.

from({Index, Version, Snapshot}, Commands) ->
    Behind = [Command || {Number, _, _} = Command <- Commands, Number > Index],
    {_, State, _, _} = lists:foldl(fun step/2, {Version, Snapshot, [], [{0, Version}]}, Behind),
    {Index, Version, term_to_binary(Snapshot), term_to_binary(State)}.

step({Index, Time, {version, To}}, {From, State, Snapshots, Versions}) ->
    Meta = meta(Index, Time, To),
    {NewState, Effects} = result((module(To)):apply(Meta, {machine_version, From, To}, State)),
    New = [{Index, To} | Versions],
    {To, NewState, add(Effects, New, Snapshots), New};
step({Index, Time, Command}, {Version, State, Snapshots, Versions}) ->
    {NewState, Effects} = result((module(Version)):apply(meta(Index, Time, Version), Command, State)),
    {Version, NewState, add(Effects, Versions, Snapshots), Versions}.

meta(Index, Time, Version) ->
    #{index => Index, term => 1, system_time => Time, machine_version => Version, from => {self(), make_ref()},
      reply_mode => noreply}.

result({State, _Reply}) -> {State, []};
result({State, _Reply, Effects}) when is_list(Effects) -> {State, Effects};
result({State, _Reply, Effect}) -> {State, [Effect]}.

add(Effects, Versions, Snapshots) ->
    lists:foldl(fun ({release_cursor, Index, Snapshot}, Found) ->
                        {_, Version} = hd([V || {First, _} = V <- Versions, First =< Index]),
                        [{Index, Version, Snapshot} | Found];
                    (_, Found) ->
                        Found
                end, Snapshots, lists:flatten(Effects)).

module(0) -> rabbit_fifo_v0;
module(Version) -> rabbit_fifo:which_module(Version).
