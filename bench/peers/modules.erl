%% RabbitMQ's storage modules driven inside a running node, for bench/peers/rabbitmq_modules.py.
%% Every function answers {Step, MessagesPerSecond} pairs.
-module(modules).
-export([store/3, index/3, queue/3]).
-include_lib("rabbit_common/include/rabbit.hrl").
-include_lib("rabbit_common/include/rabbit_framing.hrl").
-define(WINDOW, 1000).
-define(ACKS, 100).

content(Id, Size) ->
    Parts = #content{class_id = 60, properties = none, properties_bin = <<16, 0, 2>>,
                     protocol = rabbit_framing_amqp_0_9_1, payload_fragments_rev = [binary:copy(<<"x">>, Size)]},
    #basic_message{exchange_name = #resource{virtual_host = <<"/">>, kind = exchange, name = <<>>},
                   routing_keys = [<<"q">>], content = Parts, id = Id, is_persistent = true}.

rate(Count, Work) ->
    {Us, Result} = timer:tc(Work),
    {round(Count * 1000000 / max(1, Us)), Result}.

new_ids(Count) -> [rabbit_guid:gen() || _ <- lists:seq(1, Count)].

%% --- message store

store(Dir, Count, Size) ->
    {ok, Pid} = rabbit_msg_store:start_global_store_link(bench_store, Dir, undefined, {fun (ok) -> finished end, ok}),
    unlink(Pid),
    Me = self(),
    Told = fun (Ids, _) -> Me ! {safe, gb_sets:size(Ids)} end,
    Client = rabbit_msg_store:client_init(Pid, rabbit_guid:gen(), Told, fun () -> ok end),
    Ids = new_ids(Count),
    Mixed = [Id || {_, Id} <- lists:sort([{rand:uniform(), Id} || Id <- Ids])],
    {Write, ok} = rate(Count, fun () -> write(Ids, Size, Client, 0) end),
    {Read, _} = rate(Count, fun () -> read(Ids, Client) end),
    {ReadMixed, _} = rate(Count, fun () -> read(Mixed, Client) end),
    {Remove, _} = rate(Count, fun () -> rabbit_msg_store:remove(Ids, Client),
                                        rabbit_msg_store:contains(hd(Ids), Client) end),
    rabbit_msg_store:client_delete_and_terminate(Client),
    Ref = monitor(process, Pid),
    exit(Pid, shutdown),
    receive {'DOWN', Ref, _, _, _} -> ok end,
    [{write, Write}, {read, Read}, {read_random, ReadMixed}, {remove, Remove}].

write([], _, _, 0) -> ok;
write([Id | Ids], Size, Client, Flying) when Flying < ?WINDOW ->
    ok = rabbit_msg_store:write(Id, content(Id, Size), Client),
    write(Ids, Size, Client, Flying + 1);
write(Ids, Size, Client, Flying) -> receive {safe, Number} -> write(Ids, Size, Client, Flying - Number) end.

read(Ids, Client) ->
    lists:foldl(fun (Id, C) -> {{ok, _}, C1} = rabbit_msg_store:read(Id, C), C1 end, Client, Ids).

%% --- queue index

index(Count, Size, Embedded) ->
    Name = #resource{virtual_host = <<"/">>, kind = queue, name = <<"bench.index">>},
    rabbit_queue_index:erase(Name),
    Nothing = fun (_) -> ok end,
    Start = rabbit_queue_index:init(Name, Nothing, Nothing),
    Pairs = lists:zip(lists:seq(0, Count - 1), new_ids(Count)),
    {Publish, Full} = rate(Count, fun () -> lists:foldl(
        fun ({Seq, Id}, I) -> index_one(Seq, Id, Size, Embedded, I) end, Start, Pairs) end),
    Flushed = rabbit_queue_index:flush(Full),
    {Read, Seen} = rate(Count, fun () -> read_segments(0, Count, Flushed) end),
    {Ack, Done} = rate(Count, fun () -> rabbit_queue_index:flush(acknowledge(0, Count, Seen)) end),
    rabbit_queue_index:delete_and_terminate(Done),
    [{publish, Publish}, {read, Read}, {ack, Ack}].

index_one(Seq, Id, Size, Embedded, Index) ->
    Message = case Embedded of true -> content(Id, Size); false -> Id end,
    Properties = #message_properties{size = Size, needs_confirming = false},
    Next = rabbit_queue_index:deliver([Seq], rabbit_queue_index:publish(Message, Seq, undefined, Properties, true, infinity, Index)),
    case (Seq + 1) rem ?WINDOW of 0 -> rabbit_queue_index:sync(Next); _ -> Next end.

read_segments(Count, Count, Index) -> Index;
read_segments(Seq, Count, Index) ->
    Stop = min(Count, rabbit_queue_index:next_segment_boundary(Seq)),
    {Entries, Next} = rabbit_queue_index:read(Seq, Stop, Index),
    true = length(Entries) =:= Stop - Seq,
    read_segments(Stop, Count, Next).

acknowledge(Seq, Count, Index) when Seq >= Count -> Index;
acknowledge(Seq, Count, Index) ->
    Stop = min(Count, Seq + 100),
    {_, Next} = rabbit_queue_index:ack(lists:seq(Seq, Stop - 1), Index),
    acknowledge(Stop, Count, Next).

%% --- variable queue

queue(Count, Size, Mode) ->
    Me = self(),
    Name = #resource{virtual_host = <<"/">>, kind = queue, name = <<"bench.queue">>},
    Declared = amqqueue:new(Name, Me, true, false, none, [], <<"/">>, #{}, rabbit_classic_queue),
    Call = fun (Module, Fun) -> Me ! {callback, Module, Fun}, ok end,
    Start = rabbit_variable_queue:set_queue_mode(Mode, rabbit_variable_queue:init(Declared, new, Call)),
    {Publish, Full} = rate(Count, fun () -> confirm(Count, publish(1, Count, Size, Start, 0)) end),
    Half = Count div 2,
    {Fetch, Rest} = rate(Half, fun () -> fetch(Half, 1, Full) end),
    {Lists, Empty} = rate(Half, fun () -> fetch(Half div ?ACKS, ?ACKS, Rest) end),
    rabbit_variable_queue:delete_and_terminate(shutdown, Empty),
    [{publish, Publish}, {fetch_ack, Fetch}, {fetch_ack_list, Lists}].

publish(Number, Count, _, Q, Safe) when Number > Count -> {Q, Safe};
publish(Number, Count, Size, Q, Safe) ->
    Properties = #message_properties{size = Size, needs_confirming = true},
    Next = callbacks(rabbit_variable_queue:publish(content(rabbit_guid:gen(), Size), Properties, false, self(), noflow, Q)),
    case Number rem ?WINDOW of
        0 -> {Ids, Q1} = rabbit_variable_queue:drain_confirmed(rabbit_variable_queue:timeout(Next)),
             publish(Number + 1, Count, Size, Q1, Safe + length(Ids));
        _ -> publish(Number + 1, Count, Size, Next, Safe)
    end.

confirm(Count, {Q, Count}) -> Q;
confirm(Count, {Q, Safe}) ->
    receive after 1 -> ok end,
    {Ids, Next} = rabbit_variable_queue:drain_confirmed(callbacks(rabbit_variable_queue:timeout(Q))),
    confirm(Count, {Next, Safe + length(Ids)}).

callbacks(Q) ->
    receive {callback, Module, Fun} -> callbacks(rabbit_variable_queue:invoke(Module, Fun, Q));
            {bump_credit, Credit} -> credit_flow:handle_bump_msg(Credit), callbacks(Q)
    after 0 -> Q end.

fetch(0, _, Q) -> Q;
fetch(Count, Acks, Q) ->
    {Tags, Taken} = lists:mapfoldl(fun (_, Q1) -> {{_, _, Tag}, Q2} = rabbit_variable_queue:fetch(true, Q1), {Tag, Q2} end,
                                   Q, lists:seq(1, Acks)),
    {_, Next} = rabbit_variable_queue:ack(Tags, Taken),
    fetch(Count - 1, Acks, callbacks(Next)).
